"""Gradients that are reduce-scattered behind backward, and weights that are all-gathered before forward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import (
    Answer,
    Each,
    Exercise,
    require,
    require_close,
    require_received,
)
from dtcourse.emulation import EmulatedNetwork
from dtcourse.plural import plural

HALVES = Exercise(
    "two_halves",
    lesson="13",
    title="Two halves",
    takes=("two_halves",),
    target="equal to one process to 1e-12 at 2, 3 and 4 ranks; "
    "1/p of each layer updated; no port or forward idle in vain",
    forbidden=(
        "dtcourse.communication_scheduling",
        "dtcourse.data_parallel",
        "dtcourse.parameters",
        "dtcourse.sharding",
        "torch.distributed.fsdp",
        "torch.distributed.optim",
    ),
)

RANKS, LAYERS, ELEMENTS, STEPS = (2, 3, 4), 4, 24, 2
# Seconds of a layer: its forward, its backward, and all its bytes on their way (both halves).
F, B, C = 1.0, 2.0, 3.0


def _start() -> list[Tensor]:
    return [torch.arange(ELEMENTS, dtype=torch.double) / (i + 1) for i in range(LAYERS)]


def _halves(two_halves: Any, gradients: Tensor) -> Any:
    """In a rank, for each step: what each forward has seen and when it began, elements updated,
    and the step's seconds.

    gradients: this rank's, (step, layer, element)
    """
    from dtcourse import emulation

    weights, found = _start(), []
    momentum: dict[int, Tensor] = {}

    def one_step(own: Tensor) -> Any:
        """What is counted is no argument of what the answer calls: it could give another."""
        seen: dict[int, Tensor] = {}
        began: dict[int, float] = {}
        updated = [0] * LAYERS
        begun = emulation.now()

        def backward(i: int) -> Tensor:
            emulation.sleep(B)
            return own[i].clone()

        def update(i: int, part: Tensor, mean: Tensor) -> None:
            updated[i] += part.numel()
            velocity = momentum.setdefault(i, torch.zeros_like(mean))
            velocity.mul_(0.5).add_(mean)
            part.sub_(0.1 * velocity)

        def forward(i: int) -> None:
            seen[i], began[i] = weights[i].clone(), emulation.now() - begun
            emulation.sleep(F)

        two_halves(weights, backward, update, forward)
        return seen, began, updated, emulation.now() - begun

    for step in range(STEPS):
        found.append(one_step(gradients[step]))
    return found


def _runs(answer: Answer) -> Iterator[tuple[int, Tensor, Any]]:
    """(ranks, gradients by rank, run)."""
    for ranks in RANKS:
        gradients = torch.randn(ranks, STEPS, LAYERS, ELEMENTS, dtype=torch.double)
        network = EmulatedNetwork(bandwidth=2 * (ranks - 1) / ranks * ELEMENTS * 8 / C)
        how = {"network": network, "clock": "virtual", "backend": "ring", "record": True}
        yield ranks, gradients, answer.run(_halves, ranks, Each(list(gradients)), **how)


def _alone(gradients: Tensor) -> list[list[Tensor]]:
    """One process: each layer's weights after each step."""
    weights, velocity, after = _start(), [torch.zeros(ELEMENTS).double()] * LAYERS, []
    for step in range(STEPS):
        for i in range(LAYERS):
            velocity[i] = 0.5 * velocity[i] + gradients[:, step, i].mean(0)
            weights[i] = weights[i] - 0.1 * velocity[i]
        after.append(list(weights))
    return after


def best_seconds() -> float:
    """A step whose halves take C / 2 each: the first is hidden behind backward, the second beside forward."""
    return LAYERS * B + C + F + (LAYERS - 1) * max(F, C / 2)


@HALVES.check("forward sees one process's weights", points=4)
def check_weights(answer: Answer) -> None:
    """At 2, 3 and 4 ranks, in two steps with momentum, and not before they can have arrived."""
    for ranks, gradients, run in _runs(answer):
        for step, right in enumerate(_alone(gradients)):
            for rank in range(ranks):
                seen, began, _, _ = run[rank][step]
                where = f"With {plural(ranks, 'rank')}, step {step}, rank {rank}"
                require(
                    sorted(seen) == list(range(LAYERS)),
                    f"{where}: forward was called for the layers {sorted(seen)}; all of 0 to {LAYERS - 1} are asked "
                    "for, once.",
                )
                for i in range(LAYERS):
                    require(
                        began[i] >= (LAYERS - i) * B + C * 0.999,
                        f"{where}: forward of layer {i} begins after {began[i]:.2f} s. Its gradient is ready after "
                        f"{(LAYERS - i) * B:.2f} s, and its bytes travel {C:.2f} s: its weights cannot be there. "
                        "Which handle says that they are?",
                    )
                    require_close(
                        seen[i],
                        right[i],
                        f"{where}: what forward sees of layer {i}",
                        1e-12,
                        "Whose part of the mean does a rank have, and where do the other parts come from?",
                    )


@HALVES.check("a rank updates its part", points=2, needs=("check_weights",))
def check_parts(answer: Answer) -> None:
    """1/p of each layer, so that momentum takes 1/p of the memory."""
    for ranks, _, run in _runs(answer):
        for rank in range(ranks):
            for _, _, updated, _ in run[rank]:
                most = max(updated)
                require(
                    most <= ELEMENTS // ranks,
                    f"With {plural(ranks, 'rank')}, rank {rank} updates {most} of a layer's {ELEMENTS} elements; "
                    f"{ELEMENTS // ranks} are its part. "
                    "After which half of an all-reduce does a rank have the mean of its own part only?",
                )


@HALVES.check("each half travels once", points=2, needs=("check_weights",))
def check_bytes(answer: Answer) -> None:
    """The bytes of one all-reduce."""
    for ranks, _, run in _runs(answer):
        most = STEPS * LAYERS * 2 * (ranks - 1) * (ELEMENTS // ranks) * 8
        for rank in range(ranks):
            sent = run.traffic.bytes_sent(rank=rank)
            require(
                sent <= most,
                f"With {plural(ranks, 'rank')}, rank {rank} sends {sent:,} bytes; the two halves of an all-reduce "
                f"are {most:,} in {STEPS} steps. "
                "What travels that the other ranks do not need?",
            )
            # In each element of its own part are others' gradients; the other parts are theirs.
            least = STEPS * LAYERS * ELEMENTS * 8
            where = f"With {plural(ranks, 'rank')}, rank {rank}"
            require_received(where, run.traffic.bytes_received(rank), least)


@HALVES.check("in time", points=3, needs=("check_weights",))
def check_seconds(answer: Answer) -> None:
    """On the emulated clock."""
    for ranks, _, run in _runs(answer):
        slowest = max(seconds for rank in range(ranks) for *_, seconds in run[rank])
        require(
            slowest <= 1.001 * best_seconds(),
            f"With {plural(ranks, 'rank')}, a step takes {slowest:.2f} s; {best_seconds():.2f} s are enough. What "
            "does a rank wait for before it needs it, and which layer's weights does the next forward need first?",
        )
