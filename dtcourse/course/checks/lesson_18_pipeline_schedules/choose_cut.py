"""Which order, and which layers in which stage: the shortest step that fits. Really run under emulation, on ranks and
with layers that are not alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from dtcourse.course.judging import Answer, Exercise, require, require_near_best, trials
from dtcourse.course.judging.pipeline_step import measured
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork
from dtcourse.pipeline_parallel.actions import Schedule
from dtcourse.pipeline_parallel.engine import split
from dtcourse.pipeline_parallel.schedules import gpipe, interleaved_1f1b, one_f_one_b

CUT = Exercise(
    "choose_cut",
    lesson="18",
    title="An order and a cut",
    takes=("choose_cut",),
    target="a step, measured, in at most 1.01 times the time of the best choice that fits; at most 4 of 32 choices "
    "tried",
    forbidden=("dtcourse.pipeline_parallel.balance",),
    launches=True,
)

MOST = 4  # choices that an answer may try
RANKS, LAYERS, MICRO_BATCHES, SAMPLES, FLOPS = 2, 7, 4, 16, 1e9
ORDERS: dict[
    str, tuple[int, Callable[[int, int], Schedule]]
] = {  # stages of a rank, and the schedule
    "GPipe": (1, gpipe),
    "1F1B": (1, one_f_one_b),
    "interleaved": (2, lambda ranks, m: interleaved_1f1b(ranks, m, 2)),
}
AMPLE = 10**6  # bytes of room: more than any choice takes


class Given(NamedTuple):
    """What is unlike.

    widths:    of the batch and of each layer's output
    slow:      by rank, how many times as long it takes
    bandwidth: bytes per second of the network
    room:      bytes that a rank may keep for its backwards
    """

    widths: tuple[int, ...]
    slow: tuple[float, ...]
    bandwidth: float
    room: int


def cuts(stages: int) -> list[tuple[int, ...]]:
    """Every way to cut the layers into so many stages: how many layers each has."""
    ends = combinations(range(1, LAYERS), stages - 1)
    return [tuple(b - a for a, b in pairwise((0, *one, LAYERS))) for one in ends]


CHOICES: list[trials.Choice] = [(n, cut) for n, (v, _) in ORDERS.items() for cut in cuts(v * RANKS)]
WIDE, FALLING = (48, 96, 96, 24, 96, 48, 24, 48), (96, 96, 64, 16, 64, 64, 48, 48)
# The best choice of each, which tests/course/test_choose_cut.py finds by running every one.
Best = dict[Given, trials.Choice]
FREE: Best = {Given(WIDE, (1.0, 1.0), float("inf"), AMPLE): ("interleaved", (1, 1, 3, 2))}
MESSAGES: Best = {
    Given(WIDE, (1.0, 1.0), 2e7, AMPLE): ("1F1B", (3, 4)),
    Given(FALLING, (1.5, 1.0), 2e7, AMPLE): ("interleaved", (1, 2, 2, 2)),
}
ROOM: Best = {Given(WIDE, (1.0, 2.0), 1e8, 56_000): ("1F1B", (4, 3))}


def step(choice: tuple[str, tuple[int, ...]], widths: Sequence[int]) -> tuple[float, float]:
    """On each rank: the seconds of a step, and the most bytes that it keeps for its backwards."""
    import torch.distributed as dist

    name, cut = choice
    schedule = ORDERS[name][1](RANKS, MICRO_BATCHES)
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(a, b, bias=False), nn.Tanh()) for a, b in pairwise(widths)]
    x, y = (torch.randn(MICRO_BATCHES * SAMPLES, width) for width in (widths[0], widths[-1]))
    ends = [sum(cut[:stage]) for stage in range(len(cut) + 1)]
    stages = split(layers, [range(a, b) for a, b in pairwise(ends)], schedule, dist.get_rank())
    return measured(list(stages), schedule, (x, y), F.mse_loss)


def case(given: Given) -> trials.Case:
    """Layers and a cluster, as an answer gets them."""
    forward = [2 * SAMPLES * a * b / FLOPS for a, b in pairwise(given.widths)]
    nbytes = [4 * SAMPLES * width for width in given.widths]
    told = (forward, nbytes, given.bandwidth, list(given.slow), MICRO_BATCHES, given.room)
    emulated = {
        "devices": [EmulatedDevice(FLOPS).slower(factor) for factor in given.slow],
        "network": EmulatedNetwork(bandwidth=given.bandwidth),
    }
    return trials.Case(step, RANKS, CHOICES, (given.widths,), told, MOST, emulated)


PRACTICE = case(Given(FALLING, (1.0, 1.0), 1e8, 60_000))


def _require(answer: Answer, cases: Best, hint: str) -> None:
    for given, best in cases.items():
        slow = " and ".join(f"{factor:g}" for factor in given.slow)
        where = f"Widths {given.widths}, ranks that take {slow} times as long, {given.bandwidth:g} B/s, "
        where += f"room for {given.room} bytes"
        tried = case(given).tried(answer, step, [best])
        seconds, kept = trials.require_possible(
            where,
            tried,
            ("1F1B", (3, 4)),
            f"There are {', '.join(ORDERS)}; the two stages, or four, have {LAYERS} layers in all, as a tuple.",
        )
        require(
            kept <= given.room,
            f"{where}: with {tried.choice!r} a rank keeps {kept:.0f} bytes at once. Which order starts a backward as "
            "soon as it can, and what do the stages of a rank store of each micro-batch under way?",
        )
        ((least, _),) = tried.probed
        require_near_best(where, tried.choice, seconds * 1e3, least * 1e3, "ms", hint)


@CUT.check("messages take no time", points=2)
def check_free(answer: Answer) -> None:
    """Equal stages are one thing, the order another."""
    _require(
        answer,
        FREE,
        "Which order has the smaller bubble here, and does the stage that takes the batch compute as much backward as "
        "another?",
    )


@CUT.check("messages as wide as what is cut", points=3)
def check_messages(answer: Answer) -> None:
    """Where the model is narrow a cut is cheap."""
    _require(
        answer,
        MESSAGES,
        "How many bytes cross at each cut, how often, and does a rank of this order have something to do meanwhile?",
    )


@CUT.check("a slow rank, and little room", points=3)
def check_room(answer: Answer) -> None:
    """The fastest order does not fit."""
    _require(
        answer,
        ROOM,
        "Of the choices that fit, which gives the slow rank so little that nobody waits long for it?",
    )
