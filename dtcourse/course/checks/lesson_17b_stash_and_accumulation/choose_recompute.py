"""Which ranks of a pipeline run their forwards again, and how many micro-batches: the shortest step that fits. Really
run under emulation, with stages that are not alike.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from dtcourse.course.judging import Answer, Exercise, require, require_near_best, trials
from dtcourse.course.judging.pipeline_step import measured
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork
from dtcourse.pipeline_parallel.schedules import gpipe

RECOMPUTE = Exercise(
    "choose_recompute",
    lesson="17b",
    title="Who runs its forward again?",
    takes=("choose_recompute",),
    target="a step, measured, in at most 1.01 times the time of the best choice that fits; at most 4 of 24 choices "
    "tried",
    forbidden=("dtcourse.pipeline_parallel", "dtcourse.simulator"),
    launches=True,
)

MOST = 4  # choices that an answer may try
RANKS, BATCH, WIDTH, FLOPS = 3, 64, 16, 1e9
CHOICES: list[trials.Choice] = [
    (m, which) for m in (2, 4, 8) for which in product((False, True), repeat=RANKS)
]


class Given(NamedTuple):
    """What is unlike.

    inner: by rank, the inner width of its layer: what it computes
    tanhs: by rank, how many follow: each stores another output, and its time is none
    gap:   seconds that a message costs, however short it is
    room:  bytes that a rank may keep for its backwards
    """

    inner: tuple[int, int, int]
    tanhs: tuple[int, int, int]
    gap: float
    room: int


# The best choice of each, which tests/course/test_choose_recompute.py finds by running every one.
Best = dict[Given, trials.Choice]
FREE: Best = {Given((64, 32, 96), (2, 8, 2), 0.0, 30_000): (8, (False, True, True))}
GAP: Best = {Given((96, 32, 64), (4, 2, 6), 3e-4, 27_000): (2, (True, False, True))}
BOTH: Best = {Given((48, 64, 96), (10, 4, 2), 1e-4, 38_000): (4, (True, False, True))}


class Stage(nn.Module):
    """x + tanh(x U) D, and some tanh after it."""

    def __init__(self, inner: int, tanhs: int) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, inner, bias=False)
        self.down = nn.Linear(inner, WIDTH, bias=False)
        self.tanhs = tanhs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One micro-batch."""
        y = x + self.down(torch.tanh(self.up(x)))
        for _ in range(self.tanhs):
            y = torch.tanh(y)
        return y

    def stored(self) -> int:
        """Bytes per sample that a backward needs: the input, the inner tanh's output, and each tanh's."""
        return 4 * (WIDTH + self.up.out_features + self.tanhs * WIDTH)


def step(
    choice: tuple[int, tuple[bool, ...]], inner: tuple[int, ...], tanhs: tuple[int, ...]
) -> tuple[float, ...]:
    """On each rank: the seconds of a step, and by rank the most bytes kept for backwards (0 for other ranks)."""
    import torch.distributed as dist

    m, which = choice
    torch.manual_seed(0)
    rank = dist.get_rank()
    stages: list[nn.Module] = [Stage(*one) for one in zip(inner, tanhs, strict=True)]
    x, y = torch.randn(2, BATCH, WIDTH)
    seconds, kept = measured(
        [stages[rank]], gpipe(RANKS, m), (x, y), F.mse_loss, recompute=which[rank]
    )
    if which[rank]:  # the inputs of the micro-batches whose graphs are not there
        kept += 4 * WIDTH * (BATCH - BATCH // m)
    return seconds, *(kept * (rank == other) for other in range(RANKS))


def case(given: Given) -> trials.Case:
    """Stages and a network, as an answer gets them."""
    forward = [4 * WIDTH * inner / FLOPS for inner in given.inner]
    stored = [Stage(*one).stored() for one in zip(given.inner, given.tanhs, strict=True)]
    stored[-1] += 4 * WIDTH  # by the loss
    told = (forward, stored, 4 * WIDTH, given.gap, BATCH, given.room)
    emulated = {"devices": EmulatedDevice(FLOPS), "network": EmulatedNetwork(gap=given.gap)}
    what = (given.inner, given.tanhs)
    return trials.Case(step, RANKS, CHOICES, what, told, MOST, emulated)


PRACTICE = case(Given((64, 96, 32), (4, 2, 6), 5e-5, 32_000))


def _require(answer: Answer, cases: Best, hint: str) -> None:
    for given, best in cases.items():
        tried_case = case(given)
        forward, stored, *_ = tried_case.told
        where = f"Forwards of {[round(1e6 * one, 2) for one in forward]} µs and {stored} bytes per sample, "
        where += f"{given.gap * 1e6:g} µs per message, room for {given.room} bytes"
        tried = tried_case.tried(answer, step, [best])
        seconds, *kept = trials.require_possible(
            where,
            tried,
            (4, (True, False, True)),
            "There are 2, 4 or 8 micro-batches, and of each rank whether it recomputes, True or False, in a tuple.",
        )
        require(
            max(kept) <= given.room,
            f"{where}: with {tried.choice!r} the ranks keep {[round(one) for one in kept]} bytes. Which of them stash "
            "more than there is room for, and what is left of that if they run their forward again?",
        )
        ((least, *_),) = tried.probed
        require_near_best(where, tried.choice, seconds * 1e6, least * 1e6, "µs", hint)


@RECOMPUTE.check("messages take no time", points=2)
def check_free(answer: Answer) -> None:
    """One rank has room enough."""
    _require(
        answer,
        FREE,
        "Which ranks have to run their forward again, and which do it without need?",
    )


@RECOMPUTE.check("each message costs", points=3)
def check_gap(answer: Answer) -> None:
    """Fewer micro-batches send fewer messages, and stash more where they are computed again."""
    _require(
        answer,
        GAP,
        "What does one more micro-batch save of the bubble, and what do its messages cost?",
    )


@RECOMPUTE.check("a little of both", points=3)
def check_both(answer: Answer) -> None:
    """Neither the fewest nor the most micro-batches."""
    _require(
        answer,
        BOTH,
        "Of the choices that fit, for which is the sum of bubble, messages and second forwards the shortest?",
    )
