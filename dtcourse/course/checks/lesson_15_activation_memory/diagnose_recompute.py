"""Logs of steps with checkpointed blocks, drawn anew each time: which block is broken, and by what?"""

from __future__ import annotations

import random
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from dtcourse.course.judging import Answer, Exercise, require_kind

DIAGNOSE = Exercise(
    "diagnose_recompute",
    lesson="15",
    title="Which block is broken, and by what?",
    takes=("diagnose_recompute",),
    target="40 of 40 steps of 3 to 6 blocks and 1 to 3 micro-batches, drawn anew each time",
)

HEALTHY = (
    "Which of the differences here is rounding, which are between micro-batches, and what has a frozen block to run "
    "again for?"
)
KINDS = ("random state", "statistics", "reentrant", "no checkpoint", "in place")
EACH = 4  # steps of a kind, and as many healthy ones beside them
Diagnosis = tuple[str, int | None]
# rows of the log: (block, norm of its input, of its output, of its running mean afterwards); trains and gradient norm
# by block; micro-batches
Log = tuple[list[list[float]], list[bool], list[float | None], int]


class Block(nn.Module):
    """Linear, batch norm and dropout; writes a row of each of its runs."""

    def __init__(self, number: int, width: int, careful: bool, noise: float, log: Any) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(width, width), nn.BatchNorm1d(width)
        self.number, self.careful, self.noise, self.log = number, careful, noise, log
        self.again = False

    def forward(self, x: Tensor) -> Tensor:
        """See Block."""
        self.norm.momentum = 0.0 if self.again and self.careful else 0.1
        out = nn.functional.dropout(self.norm(self.linear(x)).relu(), 0.4)
        assert self.norm.running_mean is not None
        row = [x.norm().item(), out.norm().item(), self.norm.running_mean.norm().item()]
        # Another kernel, another order of sums: a second run is equal up to rounding.
        row = [one * (1 + self.noise * random.uniform(-1, 1)) for one in row]
        self.log.append([self.number, *row])
        return out


def recorded(kind: str, turn: int) -> tuple[Log, Diagnosis]:
    """A step of random size with PyTorch's checkpoint, in which one block has a mistake.

    turn: 0 to EACH - 1; over all of them there are one and several micro-batches, frozen blocks and none, and rounding
    """
    from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

    number, micro_batches = random.randint(3, 6), (2, 1, 3, 2)[turn]
    frozen = random.randint(1, number - 2) if turn else 0
    odd = frozen if kind == "reentrant" else random.randint(frozen, number - 1)
    noise = 1e-7 * (turn % 2)
    log: list[list[float]] = []
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(random.randrange(2**31))
        blocks = [Block(i, 4, kind != "statistics" or i != odd, noise, log) for i in range(number)]
        for block in blocks[:frozen]:
            block.requires_grad_(False)
        for _ in range(micro_batches):
            x = torch.randn(12, 4)
            for block in blocks:
                block.again = False
            with set_checkpoint_early_stop(False):
                for block in blocks:
                    given, wrong = x, block.number == odd
                    if wrong and kind == "no checkpoint":
                        x = block(x)
                    elif wrong and kind == "reentrant":
                        x = checkpoint(block, x, use_reentrant=True)
                    else:
                        keep = not (wrong and kind == "random state")
                        x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=keep)
                    if wrong and kind == "in place":
                        given.data.tanh_()  # by .data, which PyTorch's count of versions does not see
                for block in blocks:
                    block.again = True
                x.square().sum().backward()
    gradients = [
        None if block.linear.weight.grad is None else block.linear.weight.grad.norm().item()
        for block in blocks
    ]
    right = ("healthy", None) if kind == "healthy" else (kind, odd)
    return (log, [i >= frozen for i in range(number)], gradients, micro_batches), right


def _described(rows: Any, trains: list[bool], gradients: Any, micro_batches: int) -> str:
    return f"A step of {len(trains)} blocks, {trains.count(False)} of them frozen, {micro_batches} micro-batches"


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_kind(
        answer,
        kind,
        hint,
        drawn=recorded,
        each=EACH,
        describe=_described,
        healthy=HEALTHY,
        example=("statistics", 2),
    )


@DIAGNOSE.check("a random state that was not kept", points=2)
def check_mask(answer: Answer) -> None:
    """preserve_rng_state=False."""
    _require(
        answer, "random state", "From the same input, which block's second run makes something else, and why?"
    )  # fmt: skip


@DIAGNOSE.check("statistics that are moved again", points=2)
def check_moved(answer: Answer) -> None:
    """The batch norm does not know that it runs again."""
    _require(answer, "statistics", "What may a run that only makes activations again not change?")


@DIAGNOSE.check("an input that is changed in place", points=2)
def check_in_place(answer: Answer) -> None:
    """By .data, after the block has read it: PyTorch sees no new version."""
    _require(
        answer, "in place", "What does a second run start from, and is it what the first one started from?"
    )  # fmt: skip


@DIAGNOSE.check("the reentrant checkpoint of an input without gradient", points=2)
def check_cut(answer: Answer) -> None:
    """It trains, and gets no gradient; and it is not run again, which is a consequence."""
    _require(
        answer, "reentrant", "It is not run again, either; but which comes first: does it get a gradient at all?"
    )  # fmt: skip


@DIAGNOSE.check("a block that is not checkpointed", points=2)
def check_kept(answer: Answer) -> None:
    """Its gradient is right, and its activations are kept."""
    _require(
        answer, "no checkpoint", "How often should each block run that trains, with so many micro-batches?"
    )  # fmt: skip
