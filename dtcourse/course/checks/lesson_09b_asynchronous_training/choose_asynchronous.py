"""Learning rate, dividing and bound, for workers of unequal speed with data of their own. Run, on a virtual clock."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from dtcourse.course.judging import Answer, Exercise
from dtcourse.course.judging.simulated import Simulated, require_near_best_of
from dtcourse.course.judging.trials import Choice

CHOOSE = Exercise(
    "choose_asynchronous",
    lesson="09b",
    title="Choose how far ahead, and which learning rate",
    takes=("choose_asynchronous",),
    target="on 6 sets of workers at most 1.01 times the best choice's time, measured; at most 24 of 60 choices tried",
)

RULES, AHEAD = ("plain", "divided"), (0, 1, 3, 9, math.inf)
RATES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
CHOICES: list[Choice] = [(rule, s, lr) for rule in RULES for s in AHEAD for lr in RATES]
MOST = 24  # choices that an answer may try
UPDATES = 700  # at which a run ends
CURVES = [0.15 * (1 / 0.15) ** (i / 3) for i in range(4)]  # of the loss, one for each parameter

CLEAR = 1.015  # times the best choice's seconds: all others take more, but those that take as many
# Seconds per gradient of each worker, seconds per message, how far the workers' data differ, the loss to reach.
Job = tuple[tuple[float, ...], float, float, float]


@dataclass(frozen=True)
class Kind:
    """What a job is drawn from.

    slowest: the last worker's seconds per gradient, where the first one takes 1
    evenly: whether the others lie between them; they are as quick as the first one else, or nearly
    messages: between what the seconds of one lie
    spread: see Job
    losses: between what the loss to reach lies
    rules: which may be best
    """

    slowest: tuple[float, float]
    evenly: bool
    messages: tuple[float, float]
    spread: float
    losses: tuple[float, float]
    rules: Sequence[str] = RULES


ALIKE = (
    Kind((3, 5), False, (0.01, 0.02), 0.0, (5e-4, 3e-3), ("plain",)),
    Kind((6, 10), True, (0.1, 0.3), 0.0, (5e-4, 3e-3), ("divided",)),
)
OWN_DATA = (
    Kind((6, 10), True, (0.01, 0.05), 1.0, (3e-3, 1e-2)),
    Kind((3, 5), False, (0.1, 0.3), 1.0, (3e-3, 1e-2)),
)
ROUGH = (
    Kind((1.07, 1.07), False, (0.01, 0.05), 1.0, (0.05, 0.2)),
    Kind((3, 5), False, (0.1, 0.3), 1.0, (0.01, 0.05)),
)


def goals(workers: int, spread: float) -> list[list[float]]:
    """Where each worker's own loss is least; 0 in their mean."""
    make = random.Random(7)
    found = [[make.gauss(0, 1) * spread for _ in CURVES] for _ in range(workers)]
    mean = [sum(column) / workers for column in zip(*found, strict=True)]
    return [[a - b for a, b in zip(row, mean, strict=True)] for row in found]


def run(
    choice: Choice, paces: tuple[float, ...], message: float, spread: float, target: float
) -> tuple[float]:
    """Seconds until the loss of all workers' data is at most `target`, and stays so; inf if it does not.

    A server applies each gradient as it comes, and answers who is not too far ahead. Its link carries one message at a
    time, each way.
    """
    rule, ahead, lr = choice
    p, aims = len(paces), goals(len(paces), spread)
    x, version, reached = [1.0] * len(CURVES), 0, None
    has, pulled, pushed, waiting = [x] * p, [0] * p, [0] * p, list[int]()
    link_in = link_out = 0.0
    queue = [(seconds, worker) for worker, seconds in enumerate(paces)]
    heapq.heapify(queue)
    while version < UPDATES:
        now, worker = heapq.heappop(queue)
        link_in = max(link_in, now) + message
        step = lr / p / (max(1, version - pulled[worker]) if rule == "divided" else 1)
        seen = zip(x, has[worker], CURVES, aims[worker], strict=True)
        x = [mine - step * c * (used - aim) for mine, used, c, aim in seen]
        version, pushed[worker] = version + 1, pushed[worker] + 1
        loss = sum(c * a * a for c, a in zip(CURVES, x, strict=True)) / 2
        if not loss < 1e6:
            return (math.inf,)
        if loss > target:
            reached = None
        elif reached is None:
            reached = link_in
        waiting.append(worker)
        for other in [w for w in waiting if pushed[w] - min(pushed) <= ahead]:
            waiting.remove(other)
            pulled[other], has[other] = version, x
            link_out = max(link_out, link_in) + message
            heapq.heappush(queue, (link_out + paces[other], other))
    return (math.inf if reached is None else reached,)


def case(job: Job) -> Simulated:
    """A set of workers, as an answer gets it."""
    return Simulated(run, CHOICES, job, (RULES, AHEAD, RATES), MOST, beforehand=True)


def drawn(kinds: Sequence[Kind]) -> list[Simulated]:
    """A set of workers of each kind, of which a search can find the best choice."""
    found = []
    for kind in kinds:
        while not _can_be_searched(workers := case(_job(kind)), kind.rules):
            pass
        found.append(workers)
    return found


def _job(kind: Kind) -> Job:
    last = random.uniform(*kind.slowest)
    paces = [last ** (i / 7) if kind.evenly else 1 + 0.01 * i for i in range(7)] + [last]
    loss = math.exp(random.uniform(*map(math.log, kind.losses)))
    return tuple(round(one, 3) for one in paces), random.uniform(*kind.messages), kind.spread, loss


def _can_be_searched(workers: Simulated, rules: Sequence[str]) -> bool:
    """Whether one of `rules` is clearly best, and its best choice is found along one axis after the other.

    That is: the learning rate at the bound in the middle, the bound at that rate, and the rates beside it.
    """
    seconds = {choice: taken for choice, (taken,) in workers.search().items()}
    least = min(seconds.values())
    others = [taken for taken in seconds.values() if taken > least]
    rule, *_ = workers.best()
    if rule not in rules or least == math.inf or min(others) <= CLEAR * least:
        return False
    lr = min(RATES, key=lambda lr: seconds[rule, AHEAD[2], lr])
    bound = min(AHEAD, key=lambda bound: seconds[rule, bound, lr])
    at = RATES.index(lr)
    return least in [seconds[rule, bound, lr] for lr in RATES[max(0, at - 1) : at + 2]]


PRACTICE = case(((*(1 + 0.01 * i for i in range(7)), 4.0), 0.02, 0.0, 1e-3))


def _require(answer: Answer, kinds: Sequence[Kind], hint: str) -> None:
    for workers in drawn(kinds):
        paces, message, spread, target = workers.given
        where = (
            f"8 workers of {min(paces):g} to {max(paces):g} s per gradient, {message:.2g} s per message, "
            f"{'data of their own' if spread else 'data alike'}, to a loss of {target:.2g}"
        )
        require_near_best_of(
            workers.best(),
            answer,
            workers,
            where,
            f"Possible are {RULES}, with one of {AHEAD} and one of {RATES}.",
            hint,
        )


@CHOOSE.check("where all workers' data are alike", points=3)
def check_alike(answer: Answer) -> None:
    """Nobody needs to wait: which learning rate, and divided or not?"""
    _require(
        answer,
        ALIKE,
        "What does a bound wait for, where any worker's gradient is as good as another's? Was each rule measured at a "
        "learning rate of its own?",
    )


@CHOOSE.check("where each worker has data of its own", points=4)
def check_own(answer: Answer) -> None:
    """Whoever is fast counts more, unless it waits."""
    _require(
        answer,
        OWN_DATA,
        "Whose data count how often, if nobody waits? Were the bounds between the extremes measured, each at a "
        "learning rate of its own?",
    )


@CHOOSE.check("where the loss may be rough", points=3)
def check_rough(answer: Answer) -> None:
    """A few updates are enough."""
    _require(
        answer,
        ROUGH,
        "After how many updates of each worker is this loss reached? Was the choice on each side of yours measured?",
    )
