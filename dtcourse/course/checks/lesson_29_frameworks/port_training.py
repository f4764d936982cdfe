"""A training with sharded parameters, micro-batches and clipping, ported from this course's classes to PyTorch's."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from dtcourse.course.judging import Answer, Each, Exercise, number, require, require_close

PORT = Exercise(
    "port_training",
    lesson="29",
    title="Port a training",
    takes=("port_training",),
    target="on 2, 3 and 4 ranks every weight equal to one process's to 1e-9 and every norm too; a rank reduce-scatters "
    "each gradient once per step, and all-reduces at most 1,000 bytes",
    forbidden=(
        "dtcourse.checkpoint",
        "dtcourse.data_parallel",
        "dtcourse.hybrid",
        "dtcourse.parameters",
        "dtcourse.sharding",
    ),
)

WIDTHS, LR, MAX_NORM = (12, 24, 12), 0.5, 0.3  # widths that 2, 3 and 4 ranks divide
Batch = tuple[Tensor, Tensor]
Given = tuple[nn.Sequential, list[list[list[Batch]]]]  # the model; [step][micro-batch][rank]


def new_model() -> nn.Sequential:
    """Linear layers with tanh between, in double precision, drawn anew."""
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise(WIDTHS):
        layers += [nn.Linear(n_in, n_out, dtype=torch.double), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def drawn(ranks: int, micro_batches: int) -> Given:
    """A model and four steps: another one each time."""

    def batch() -> Batch:
        return torch.randn(3, WIDTHS[0]).double(), 3 * torch.randn(3, WIDTHS[-1]).double()

    steps = [[[batch() for _ in range(ranks)] for _ in range(micro_batches)] for _ in range(4)]
    return new_model(), steps


def trained(given: Given, mistake: str = "") -> tuple[list[float], dict[str, Tensor]]:
    """One process on all ranks' samples: norms before clipping, and the weights.

    mistake: what an answer may have done
    """
    model, norms = copy.deepcopy(given[0]), []
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for step in given[1]:
        if mistake != "uncleared":
            optimizer.zero_grad()
        taken = step[-1:] if mistake == "last" else step
        for by_rank in taken:
            x, target = (torch.cat(parts) for parts in zip(*by_rank, strict=True))
            loss = (model(x) - target).square().mean()
            (loss if mistake == "summed" else loss / len(step)).backward()
        most = float("inf") if mistake == "unclipped" else MAX_NORM
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), most)))
        optimizer.step()
    return norms, {name: weight.detach() for name, weight in model.state_dict().items()}


HINTS = {
    "summed": "By how many micro-batches is each loss divided?",
    "last": "Which micro-batches are in the gradient that the ranks reduce?",
    "uncleared": "Which gradients are still there when a step begins?",
    "unclipped": "Were the gradients scaled before the step?",
}


def _in_rank(port_training: Any, weights: dict[str, Tensor], mine: list[Any]) -> tuple[Any, Any]:
    model = new_model()
    model.load_state_dict(weights)
    norms, state = port_training(model, mine, LR, MAX_NORM)
    return [number(norm) for norm in norms], dict(state)


def _run(answer: Answer, ranks: int, micro_batches: int) -> tuple[Given, Any]:
    given = drawn(ranks, micro_batches)
    weights = {name: weight.clone() for name, weight in given[0].state_dict().items()}
    own = [[[by_rank[rank] for by_rank in step] for step in given[1]] for rank in range(ranks)]
    return given, answer.run(_in_rank, ranks, weights, Each(own), backend="ring", record=True)


def _hint(given: Given, state: dict[str, Tensor]) -> str:
    start = given[0].state_dict()

    def is_like(other: dict[str, Tensor]) -> bool:
        return all(torch.allclose(state[n], other[n], rtol=1e-6, atol=1e-9) for n in other)

    if is_like(start):
        return "No weight has changed. Whose parameters does the optimizer hold?"
    for mistake, hint in HINTS.items():
        if is_like(trained(given, mistake)[1]):
            return hint
    return "Which ranks' samples are in a gradient, and by which norm does each rank scale it?"


def _compare(answer: Answer, ranks: int, micro_batches: int) -> None:
    given, run = _run(answer, ranks, micro_batches)
    norms, weights = trained(given)
    for rank in range(ranks):
        got_norms, got = run[rank]
        require(
            set(got) == set(weights),
            f"On {ranks} ranks, rank {rank} returns the weights {sorted(got)}; {sorted(weights)} are wanted, under the "
            "names that the model had.",
        )
        for name, right in weights.items():
            require(
                isinstance(got[name], Tensor) and got[name].shape == right.shape,
                f"On {ranks} ranks, rank {rank} returns {name} as {tuple(getattr(got[name], 'shape', ()))}; all "
                f"{tuple(right.shape)} of it are wanted, on every rank.",
            )
        for name, right in weights.items():
            where = f"On {ranks} ranks with {micro_batches} micro-batches, rank {rank}: {name}"
            require_close(got[name], right, where, 1e-9, _hint(given, got))
        right_norms = all(
            isinstance(a, float) and abs(a - b) < 1e-9 * b
            for a, b in zip(got_norms, norms, strict=False)
        )
        require(
            len(got_norms) == len(norms) and right_norms,
            f"On {ranks} ranks, rank {rank} says that the norms were {got_norms}, and they are {norms}: of all "
            "gradients, before they were scaled. Of which part of the gradients is yours the norm?",
        )


@PORT.check("one micro-batch, two and three ranks", points=4)
def check_one(answer: Answer) -> None:
    """Sharded, clipped, and put together."""
    _compare(answer, 2, 1)
    _compare(answer, 3, 1)


@PORT.check("three micro-batches, four ranks", points=3)
def check_several(answer: Answer) -> None:
    """Their mean."""
    _compare(answer, 4, 3)


@PORT.check("what is sent", points=3, needs=("check_several",))
def check_sent(answer: Answer) -> None:
    """One reduce-scatter per step, whatever the number of micro-batches."""
    ranks = 4
    given, run = _run(answer, ranks, 3)
    numbers = sum(weight.numel() for weight in given[0].state_dict().values())
    most = len(given[1]) * 8 * numbers * (ranks - 1) // ranks
    for rank in range(ranks):
        reduced = run.traffic.bytes_sent(rank, operation="all_reduce")
        require(
            reduced <= 1000,
            f"Rank {rank} all-reduces {reduced:,} bytes, and 1,000 are enough for norms. Which rank needs which part "
            "of a gradient?",
        )
        scattered = run.traffic.bytes_sent(rank, operation="reduce_scatter")
        require(
            0 < scattered <= most,
            f"Rank {rank} reduce-scatters {scattered:,} bytes in {len(given[1])} steps of 3 micro-batches; {most:,} "
            "are each gradient once per step. After which micro-batch are gradients complete?",
        )
