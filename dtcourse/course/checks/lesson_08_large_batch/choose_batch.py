"""Which batch, at which learning rate: the least time to a loss, by trials that are really run; few are allowed."""

from __future__ import annotations

from functools import cache

import torch

from dtcourse.course.judging import Answer, Exercise, require, require_near_best, trials
from dtcourse.course.judging.short_training import (
    SEEDS,
    TARGET,
    step_seconds,
    steps_to_loss,
)
from dtcourse.course.judging.threads import one_thread
from dtcourse.emulation import EmulatedNetwork

CHOOSE = Exercise(
    "choose_batch",
    lesson="08",
    title="Choose the batch and its learning rate, by trials",
    takes=("choose_batch",),
    target="on 3 clusters a choice that reaches the loss in at most 1.1 times the best one's time; at most 10 of 30 "
    "choices tried",
    forbidden=("dtcourse.course.checks", "dtcourse.course.judging"),
    launches=True,
)

RANKS, MICRO = 2, 2
ACCUMULATIONS = (1, 2, 4, 8, 16, 32)
RATES = (0.25, 0.5, 1.0, 2.0, 4.0)
MOST = 10  # choices that an answer may try
MARGIN = 1.1  # times the best one's time
CHOICES: list[trials.Choice] = [(times, lr) for times in ACCUMULATIONS for lr in RATES]
# seconds of a micro-batch; a message's latency, in seconds; bytes per second of the network
Cluster = tuple[float, float, float]
CHEAP: Cluster = (5e-3, 50e-6, 1e8)
COSTLY: Cluster = (2e-3, 15e-3, 1e7)
COSTLIEST: Cluster = (1e-3, 100e-3, 1e7)


Steps = dict[trials.Choice, float]


def job(
    choice: tuple[int, float], micro_seconds: float, counted: Steps | None
) -> tuple[float, float]:
    """On each rank: the steps to the loss, of a training on rank 1; and the seconds of one step of all ranks.

    counted: where every choice was trained already, their steps, so that the judge trains none twice
    """
    import torch.distributed as dist

    times, lr = choice
    seconds = step_seconds(times, micro_seconds)
    if not dist.get_rank():
        return 0.0, seconds
    if counted is not None:
        return counted[choice], seconds
    torch.set_num_threads(1)
    return steps_to_loss(RANKS * MICRO * times, [lr])[0], seconds


def case(cluster: Cluster, counted: Steps | None = None) -> trials.Case:
    """A cluster, as an answer gets it."""
    micro_seconds, latency, bandwidth = cluster
    emulated = {"network": EmulatedNetwork(latency=latency, bandwidth=bandwidth)}
    told, given = (list(ACCUMULATIONS), list(RATES)), (micro_seconds,)
    return trials.Case(job, RANKS, CHOICES, given, told, MOST, emulated, hidden=(counted,))


PRACTICE = case(COSTLY)


@cache
def steps() -> Steps:
    """Of every choice, to the loss: each is trained. They do not depend on the cluster."""
    with one_thread():
        return {
            (times, lr): found
            for times in ACCUMULATIONS
            for lr, found in zip(RATES, steps_to_loss(RANKS * MICRO * times, RATES), strict=True)
        }


def one_step(choice: tuple[int], micro_seconds: float, _: Steps | None) -> tuple[float]:
    """On each rank: the seconds of one step of so many micro-batches."""
    return (step_seconds(choice[0], micro_seconds),)


PROBED: list[trials.Choice] = [(times,) for times in ACCUMULATIONS]


def best(of_a_step: list[trials.Measured]) -> tuple[float, trials.Choice]:
    """The shortest time to the loss, and its choice, where steps of PROBED take so long."""
    each = {times: seconds for (times,), (seconds,) in zip(PROBED, of_a_step, strict=True)}
    return min((taken * each[choice[0]], choice) for choice, taken in steps().items())


def _require(answer: Answer, cluster: Cluster, hint: str) -> None:
    micro_seconds, latency, bandwidth = cluster
    where = f"{micro_seconds * 1e3:g} ms per micro-batch, {latency * 1e3:g} ms of latency, {bandwidth / 1e6:g} MB/s"
    tried = case(cluster, steps()).tried(answer, one_step, PROBED)
    taken, seconds = trials.require_possible(
        where,
        tried,
        (4, 1.0),
        f"The micro-batches of a step are one of {ACCUMULATIONS}, and the learning rate is one of {RATES}.",
    )
    require(
        taken < float("inf"),
        f"{where}: {tried.choice!r} does not reach a loss of {TARGET}, the mean of {SEEDS} seeds. Was it tried before "
        "it was chosen?",
    )
    least, _ = best(tried.probed)
    require_near_best(where, tried.choice, taken * seconds, least, "s", hint, MARGIN)


@CHOOSE.check("where a message costs little", points=3)
def check_cheap(answer: Answer) -> None:
    """Samples are what costs, and a small batch needs the fewest of them."""
    _require(
        answer,
        CHEAP,
        "A step of half the batch takes nearly half the time here. Which batch needs the fewest samples, at its own "
        "best learning rate?",
    )


@CHOOSE.check("where a message costs a few micro-batches", points=3)
def check_costly(answer: Answer) -> None:
    """In between: neither the smallest nor the largest."""
    _require(
        answer,
        COSTLY,
        "What does one step take there with twice the micro-batches, and how many steps does the larger batch save?",
    )


@CHOOSE.check("where a message costs most", points=3)
def check_costliest(answer: Answer) -> None:
    """Steps are what costs, as long as a larger batch saves any."""
    _require(
        answer,
        COSTLIEST,
        "Nearly all of a step is its messages there. Which choice takes the fewest steps, and which learning rate lets "
        "it?",
    )
