"""When a batch grows at a fixed learning rate: the least time to a loss, by a few trials that are really run."""

from __future__ import annotations

import math
from functools import cache

import torch

from dtcourse.course.judging import Answer, Exercise, require, require_near_best, trials
from dtcourse.course.judging.short_training import (
    SEEDS,
    Training,
    step_seconds,
)
from dtcourse.course.judging.threads import one_thread
from dtcourse.emulation import EmulatedNetwork

CHOOSE = Exercise(
    "choose_growth",
    lesson="08b",
    title="When should the batch grow?",
    takes=("choose_growth",),
    target="on 3 clusters a choice that reaches the loss in at most 1.1 times the best one's time; at most 8 of 21 "
    "choices tried",
    forbidden=("dtcourse.course.checks", "dtcourse.course.judging"),
    launches=True,
)

RANKS, MICRO, LR = 2, 2, 0.7
TARGET = 0.25  # training loss, the mean of all seeds
LAST = 500  # steps after which a run is given up
ACCUMULATIONS = (1, 4, 16)  # at first, after the first growth, after the second
STEPS = (0, 40, 80, 160, 240, 320)
MOST = 8  # choices that an answer may try
MARGIN = 1.1  # times the best one's time
CHOICES: list[trials.Choice] = [(i, j) for i in STEPS for j in STEPS if i <= j]
# seconds of a micro-batch; a message's latency, in seconds; bytes per second of the network
Cluster = tuple[float, float, float]
CHEAP: Cluster = (5e-3, 50e-6, 1e8)
COSTLY: Cluster = (2e-3, 15e-3, 1e7)
COSTLIEST: Cluster = (1e-3, 100e-3, 1e7)
Steps = dict[trials.Choice, float]


def steps_of(first: int, second: int) -> float:
    """To the loss, of a run whose batch grows before these steps, counted from 0."""
    training = Training([LR], TARGET)
    for end, times in zip((first, second, LAST), ACCUMULATIONS, strict=True):
        training.go(end, RANKS * MICRO * times)
    return training.steps[0]


def job(
    choice: tuple[int, int], micro_seconds: float, counted: Steps | None
) -> tuple[float, float]:
    """On each rank: the steps to the loss, of a training on rank 1; and the seconds of all of them.

    counted: where every choice was trained already, their steps, so that the judge trains none twice
    """
    import torch.distributed as dist

    each = [step_seconds(times, micro_seconds) for times in ACCUMULATIONS]
    found = torch.zeros(1, dtype=torch.double)
    if dist.get_rank() == 1:
        with one_thread():
            found[0] = steps_of(*choice) if counted is None else counted[choice]
    dist.broadcast(found, 1)
    steps = found.item()
    return steps, seconds_of(choice, steps, each)


def seconds_of(choice: trials.Choice, steps: float, each: list[float]) -> float:
    """Of so many steps whose batch grows as chosen, where steps of the three batches take `each`."""
    ends = [min(steps, end) for end in (*choice, math.inf)]
    lengths = [end - start for start, end in zip((0, *ends), ends, strict=False)]
    # a run that never ends takes for ever, whatever a step takes
    return sum(n * seconds for n, seconds in zip(lengths, each, strict=True))


def one_step(choice: tuple[int], micro_seconds: float, _: Steps | None) -> tuple[float]:
    """On each rank: the seconds of one step of so many micro-batches."""
    return (step_seconds(choice[0], micro_seconds),)


PROBED: list[trials.Choice] = [(times,) for times in ACCUMULATIONS]


def case(cluster: Cluster, counted: Steps | None = None) -> trials.Case:
    """A cluster, as an answer gets it."""
    micro_seconds, latency, bandwidth = cluster
    emulated = {"network": EmulatedNetwork(latency=latency, bandwidth=bandwidth)}
    given, told = (micro_seconds,), (list(STEPS),)
    return trials.Case(job, RANKS, CHOICES, given, told, MOST, emulated, hidden=(counted,))


PRACTICE = case(COSTLY)


@cache
def steps() -> Steps:
    """Of every choice, to the loss: each is trained. They do not depend on the cluster.

    What two runs have in common before their batches differ is trained once.
    """
    small, middle, large = (RANKS * MICRO * times for times in ACCUMULATIONS)
    found = {}
    with one_thread():
        start = Training([LR], TARGET)
        for first in STEPS:
            start.go(first, small)
            grown = start.copy()
            for second in STEPS[STEPS.index(first) :]:
                grown.go(second, middle)
                end = grown.copy()
                end.go(LAST, large)
                found[first, second] = end.steps[0]
    return {choice: found[choice] for choice in CHOICES}


def best(of_a_step: list[trials.Measured]) -> tuple[float, trials.Choice]:
    """The shortest time to the loss, and its choice, where steps of PROBED take so long."""
    each = [seconds for (seconds,) in of_a_step]
    return min((seconds_of(choice, taken, each), choice) for choice, taken in steps().items())


def _require(answer: Answer, cluster: Cluster, hint: str) -> None:
    micro_seconds, latency, bandwidth = cluster
    where = f"{micro_seconds * 1e3:g} ms per micro-batch, {latency * 1e3:g} ms of latency, {bandwidth / 1e6:g} MB/s"
    tried = case(cluster, steps()).tried(answer, one_step, PROBED)
    _, seconds = trials.require_possible(
        where,
        tried,
        (40, 160),
        f"Both are among {STEPS}, and the second growth is not before the first.",
    )
    require(
        seconds < math.inf,
        f"{where}: {tried.choice!r} does not reach a loss of {TARGET}, the mean of {SEEDS} seeds.",
    )
    require_near_best(where, tried.choice, seconds, best(tried.probed)[0], "s", hint, MARGIN)


@CHOOSE.check("where a message costs little", points=3)
def check_cheap(answer: Answer) -> None:
    """A large batch's step costs sixteen small ones: it is worth that only when the noise is what is left."""
    _require(
        answer,
        CHEAP,
        "A step of the large batch costs sixteen of the small one here. How long does the small batch do as well, and "
        "what does it lack in the end?",
    )


@CHOOSE.check("where a message costs a few micro-batches", points=3)
def check_costly(answer: Answer) -> None:
    """In between: the middle batch at once, the large one late."""
    _require(
        answer,
        COSTLY,
        "What does a step of each of the three batches take there, and which of them is never worth its message?",
    )


@CHOOSE.check("where a message costs most", points=3)
def check_costliest(answer: Answer) -> None:
    """Steps are what costs, and the large batch takes the fewest."""
    _require(
        answer,
        COSTLIEST,
        "Nearly all of a step is its messages there, whatever its batch. Which choice takes the fewest steps?",
    )
