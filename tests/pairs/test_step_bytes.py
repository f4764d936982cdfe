"""What a training step of each pair of techniques that works sends, to the byte, on 2 x 2 ranks: a formula from sizes.

Messages are counted one by one on our own backend, and each is laid to the axis on which its two ranks differ. Every
token goes through every expert, so that what experts are sent is known as well.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from dtcourse import launch
from dtcourse.collectives import traffic
from dtcourse.models import TransformerConfig
from tests.fuzz.pairs import DRAWN, grid_of
from tests.pairs.grid import AXES, BATCH, SHARDED, Grid, Task
from tests.pairs.grid_training import Training

V, D, F, L, S, E, DOUBLE, FLAG = (
    32,
    16,
    8,
    1,
    4,
    4,
    8,
    4,
)  # all divide by 2; bytes of a double, and of an int32
CONFIG = TransformerConfig(
    vocab=V, d_model=D, d_ff=F, n_layers=L, n_heads=4, max_length=S, tied=False, bias=False
)
DENSE = Task(CONFIG, unused=False)
MIXED = Task(replace(CONFIG, experts=E, top_k=E), unused=False)
TOKENS = BATCH * S
PARAMETERS = (
    2 + 8 * L + 2
)  # embeddings; four and two matrices and two norms in each block; norm and head

# Two stages' flags of what each replica has used: a pipeline leaves None where none has, since it averages by hand.
USED = 2 * PARAMETERS * FLAG

# All bytes of a step as they were before norms' gradients travelled together. Less is welcome, more is not.
BEFORE = {
    ("fully_shard", "tensor"): 137216,
    ("fully_shard", "sequence"): 163328,
    ("fully_shard", "expert"): 199744,
    ("FullyShardedDataParallel", "tensor"): 146688,
    ("FullyShardedDataParallel", "sequence"): 172800,
    ("FullyShardedDataParallel", "expert"): 217408,
    ("fully_shard", "pipeline"): 186240,
    ("FullyShardedDataParallel", "pipeline"): 186240,
    ("ZeRO-1", "pipeline"): 70272 + USED,
    ("ZeRO-2", "pipeline"): 89888,
    ("pipeline", "tensor"): 110592,
    ("pipeline", "sequence"): 125184,
    ("pipeline", "expert"): 98176,
    ("DistributedDataParallel", "pipeline"): 50944 + USED,
    ("DistributedDataParallel", "tensor"): 126656,
    ("DistributedDataParallel", "sequence"): 152768,
    ("ZeRO-1", "tensor"): 146880,
    ("ZeRO-1", "sequence"): 172992,
    ("ZeRO-1", "expert"): 252992,
    ("ZeRO-2", "tensor"): 126656,
    ("ZeRO-2", "sequence"): 152768,
    ("expert", "tensor"): 297152,
    ("tensor", "expert"): 297152,
    ("tensor", "pipeline"): 110592,
    ("expert", "pipeline"): 98176,
}


def pair_of(names: tuple[str, str]) -> tuple[Grid, Task]:
    return grid_of(*names, (2, 2), "1F1B"), MIXED if "expert" in names else DENSE


def second_step(grid: Grid, task: Task) -> None:
    """A pipeline's first one sends headers, too."""
    training = Training(grid, task)
    for phase in ("first", "second"):
        with traffic.phase(phase):
            training.backward(1)
            training.optimizer.step()


def place(rank: int, grid: Grid) -> dict[str, int]:
    found = {}
    for axis, size in zip(reversed(AXES), reversed(grid.shape), strict=True):
        rank, found[axis] = divmod(rank, size)
    return found


def measured(names: tuple[str, str]) -> dict[tuple[str, str], int]:
    """Bytes that all ranks send, by (operation, the axis on which the two ranks differ)."""
    (grid, task), sent = pair_of(names), Counter()
    run = launch(second_step, grid.ranks, grid, task, backend="ring", record=True)
    for row in run.traffic.select(phase="second", direction="sent"):
        here, there = place(row.rank, grid), place(row.peer, grid)
        axes = " x ".join(axis for axis in AXES if here[axis] != there[axis])
        sent[row.operation, axes] += row.bytes
    return dict(sent)


# --- the formula ------------------------------------------------------------------------------------------------------


def passed(ranks: int, numbers: int, size: int = DOUBLE) -> int:
    """Bytes that a ring sends in all where every number passes all ranks: gathers, half an all-reduce, broadcasts."""
    return (ranks - 1) * numbers * size


class Held:
    """Numbers of parameters on a tensor rank and an expert rank, in all stages together."""

    def __init__(self, grid: Grid, mixed: bool) -> None:
        t = grid.tensor
        self.ends = 2 * V * D // t + S * D + D  # embedding and head; positions; a norm
        mlp = D * E if mixed else 2 * D * F // t  # a gate, or two matrices
        self.experts = L * E * 2 * D * F // (grid.expert * t) if mixed else 0
        self.others = self.ends + L * (4 * D * D // t + 2 * D + mlp)
        self.all = self.others + self.experts


def formula(names: tuple[str, str]) -> dict[tuple[str, str], int]:
    """The same, from sizes. Each group of an axis sends; a stage's groups are as many as its other axes' ranks."""
    grid, task = pair_of(names)
    held, mixed, m = Held(grid, task is MIXED), task is MIXED, grid.micro_batches
    sent: Counter[tuple[str, str]] = Counter()
    over_data(sent, grid, held, mixed)
    inside_layers(sent, grid, mixed)
    if mixed:
        of_experts(sent, grid, held)
    # Forward each border has the activations, backward their gradients; and the gates' losses of each micro-batch.
    copies = 1 if grid.sequence else grid.tensor
    there = copies * TOKENS * D + mixed * m * grid.expert * grid.data * grid.tensor
    sent["send", "pipe"] += 2 * passed(grid.pipe, there)
    return {key: number for key, number in sent.items() if number}


def over_data(sent: Counter, grid: Grid, held: Held, mixed: bool) -> None:
    """The outer technique's: gradients, updated values, gathered weights, and flags of what was used."""
    groups, m = grid.expert * grid.tensor, grid.micro_batches
    n, piped = grid.data, grid.pipe > 1
    if grid.outer in SHARDED:
        # For each forward and each backward; fully_shard keeps what the outermost unit has between the two.
        kept = held.ends if grid.outer == "fully_shard" and not piped else 0
        sent["all_gather", "data"] += groups * passed(n, m * 2 * held.all - kept)
        sent["reduce_scatter", "data"] += groups * passed(n, m * held.all)
    if "ZeRO" in grid.outer:
        sent["broadcast", "data"] += groups * passed(n, held.all)
    if grid.outer == "ZeRO-2":
        sent["reduce", "data"] += groups * passed(n, m * held.all)
        sent["all_reduce", "data"] += 2 * groups * passed(n, m * PARAMETERS, FLAG)
    elif grid.outer not in SHARDED:
        sent["all_reduce", "data"] += 2 * groups * passed(n, held.all)
        if piped or not mixed:  # which parameters no replica has used
            sent["all_reduce", "data"] += 2 * groups * passed(n, PARAMETERS, FLAG)


def inside_layers(sent: Counter, grid: Grid, mixed: bool) -> None:
    """Tensor and sequence parallelism, in units of all tokens' activations: data ranks have different ones."""
    t, activations = grid.tensor, TOKENS * D
    sent["all_gather", "tensor"] += passed(t, TOKENS * V)  # logits
    if not grid.sequence:
        # After the embedding and before the head; twice per region, of which a mixture's has a row for each expert.
        rows = E if mixed else 1
        sent["all_reduce", "tensor"] += 2 * passed(t, (2 + L * (2 + 2 * rows)) * activations)
        return
    # After the embedding, whose learned positions have gradients of one sequence's size in each backward.
    sent["reduce_scatter", "tensor"] += passed(t, activations)
    sent["all_gather", "tensor"] += grid.data * grid.micro_batches * passed(t, S * D)
    # Before each region forward, and backward twice; at the head alike; back to the embedding.
    sent["all_gather", "tensor"] += passed(t, (6 * L + 2 + 1) * activations)
    sent["reduce_scatter", "tensor"] += passed(t, (4 * L + 1) * activations)
    norms = (2 * L + 1) * D  # summed once in a step, of however many micro-batches
    sent["all_reduce", "tensor"] += 2 * grid.data * passed(t, norms)


def of_experts(sent: Counter, grid: Grid, held: Held) -> None:
    """Rows to experts and back, their counts, gates' losses, and the mean over the ranks with the same experts."""
    e, m, in_stage = grid.expert, grid.micro_batches, grid.ranks // grid.pipe
    elsewhere = (e - 1) * E // e  # of all experts
    sent["all_to_all", "expert"] += 4 * L * TOKENS * elsewhere * D * grid.tensor * DOUBLE
    sent["all_to_all", "expert"] += L * m * in_stage * elsewhere * DOUBLE
    for axis, n in (("data", grid.data), ("expert", e)):
        losses = 2 * L * m * (2 * E + 2)  # forward, and as much backward
        sent["all_reduce", axis] += 2 * (in_stage // n) * passed(n, losses)
    others = held.others // grid.data if grid.outer in SHARDED else held.others
    sent["all_reduce", "expert"] += 2 * grid.data * grid.tensor * passed(e, others)


# --- the tests --------------------------------------------------------------------------------------------------------


def check(names: tuple[str, str]) -> None:
    sent = measured(names)
    assert sent == formula(names)
    assert sum(sent.values()) <= BEFORE[names]


# Each technique is in one of them, and each axis.
ALWAYS = [("fully_shard", "tensor"), ("ZeRO-1", "expert"), ("pipeline", "sequence")]
ONE_OF_FOUR = (1, 4)


@pytest.mark.parametrize("names", ALWAYS, ids=" x ".join)
def test_a_step_sends_what_the_sizes_say_and_no_more_than_before(names):
    check(names)


@pytest.mark.slow
@pytest.mark.stands_on(share=ONE_OF_FOUR, lately=ONE_OF_FOUR)
@pytest.mark.parametrize("names", [n for n in DRAWN if n not in ALWAYS], ids=" x ".join)
def test_so_does_one_of_any_other_pair(names):
    check(names)
