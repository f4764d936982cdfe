"""Checkpoint that keeps the random state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, CheckFailed, Exercise, require

CHECKPOINT = Exercise(
    "checkpoint_with_random_state",
    lesson="15",
    title="Checkpoint that keeps the random state",
    takes=("my_checkpoint",),
    target="gradients to 1e-12 with dropout inside; keeps its inputs, its output and 16 KiB; two runs of the function",
    forbidden=(
        "torch.utils.checkpoint",
        "dtcourse.memory",
    ),
)


def _checkpointed(
    my_checkpoint: Any, weights: list[Tensor], inputs: list[Tensor], needs: list[bool]
) -> Any:
    from dtcourse.profiling.memory_tracker import MemoryTracker

    first, second = (w.clone().requires_grad_() for w in weights)
    x, scale = (i.clone().requires_grad_(need) for i, need in zip(inputs, needs, strict=True))
    runs = 0

    def function(x: Tensor, scale: Tensor) -> Tensor:
        nonlocal runs
        runs += 1
        hidden = torch.nn.functional.dropout(torch.tanh(x @ first), 0.4)
        return torch.nn.functional.dropout(hidden * scale, 0.4) @ second

    torch.manual_seed(7)
    with MemoryTracker(inputs=[first, second, x, scale]) as tracker:
        out = my_checkpoint(function, x, scale)
        between = torch.rand(3)
        out.square().sum().backward()
    after = torch.rand(3)
    gradients = [None if t.grad is None else t.grad for t in (first, second, x, scale)]
    return out.detach(), gradients, between, after, runs, tracker.activation_bytes


def _chain(rows: int = 24, width: int = 6, hidden: int = 40) -> tuple[list[Tensor], list[Tensor]]:
    double = torch.double
    weights = [torch.randn(width, hidden, dtype=double), torch.randn(hidden, 5, dtype=double)]
    return weights, [torch.randn(rows, width, dtype=double), torch.rand(hidden, dtype=double) + 0.5]


def _without(weights: list[Tensor], inputs: list[Tensor], needs: list[bool]) -> Any:
    """What comes out without checkpointing; the judge's own random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        return _checkpointed(lambda function, *inputs: function(*inputs), weights, inputs, needs)


NAMES = ("the first weight", "the second weight", "the first input", "the second input")


def _compare(answer: Answer, needs: list[bool]) -> Any:
    weights, inputs = _chain()
    got = answer.call(_checkpointed, weights, inputs, needs)
    right = _without(weights, inputs, needs)
    require(
        got[0].shape == right[0].shape and (got[0] - right[0]).abs().max() < 1e-12,
        "What it returns is not what function(*inputs) returns. The forward pass is the function's own.",
    )
    for name, mine, theirs in zip(NAMES, got[1], right[1], strict=True):
        if theirs is None:
            require(mine is None, f"{name} needs no gradient, and got one.")
            continue
        require(
            mine is not None,
            f"{name} has no gradient. "
            + (
                "The weights are not among the inputs; where do their gradients come from in your backward?"
                if "weight" in name
                else "Does your backward return one for each input?"
            ),
        )
        require(
            mine.shape == theirs.shape and (mine - theirs).abs().max() < 1e-12,
            f"The gradient of {name} is off by {(mine - theirs).abs().max():.2g}: it belongs to another dropout mask than the "
            "output does, or to another function. Which random numbers does the second run draw?",
        )
    return got, right


@CHECKPOINT.check(
    "the gradients of weights and inputs, with dropout inside", points=3, needs=("check_kept",)
)
def check_gradients(answer: Answer) -> None:
    """Two inputs that need gradients, two weights that are no inputs."""
    _compare(answer, [True, True])


@CHECKPOINT.check("inputs that need no gradient", points=2, needs=("check_kept",))
def check_first_block(answer: Answer) -> None:
    """A batch needs none; the weights do all the same."""
    try:
        _compare(answer, [False, True])
        _compare(answer, [False, False])
    except CheckFailed as failed:
        raise CheckFailed(
            f"{failed} (This is the first block of a network: its batch needs no gradient, its weights do. autograd calls the "
            "backward only of an operation one of whose inputs requires a gradient: what could you give it?)"
        ) from None


@CHECKPOINT.check(
    "the random numbers of the rest of the program are the same as without it",
    points=2,
    needs=("check_kept",),
)
def check_stream(answer: Answer) -> None:
    """After forward and after backward."""
    got, right = _compare(answer, [True, True])
    require(
        torch.equal(got[2], right[2]),
        "After forward, the next random numbers are others than without checkpointing. Keeping the state should not change it.",
    )
    require(
        torch.equal(got[3], right[3]),
        "After backward, the next random numbers are others than without checkpointing: the generator was left where the "
        "second run had put it. What would the next dropout in the network draw?",
    )


@CHECKPOINT.check(
    "keeps its inputs and its output, and runs the function twice",
    points=3,
    needs=("check_gradients",),
)
def check_kept(answer: Answer) -> None:
    """Bytes alive when backward begins, beyond the inputs."""
    weights, inputs = _chain(rows=2000, hidden=200)
    out, _, _, _, runs, kept = answer.call(_checkpointed, weights, inputs, [True, True])
    without = _without(weights, inputs, [True, True])[5]
    allowed = out.nbytes + sum(x.nbytes for x in inputs) + (16 << 10)
    require(
        kept <= allowed,
        f"{kept:,} bytes are kept from forward to backward; the output, copies of the inputs and 16 KiB make {allowed:,} "
        f"(without checkpointing: {without:,}). Does autograd watch the first run?",
    )
    require(
        runs == 2, f"The function ran {runs} times; two are enough: one forward, one in backward."
    )
