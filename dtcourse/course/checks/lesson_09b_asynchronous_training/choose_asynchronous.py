"""Learning rate, dividing and bound, for workers of unequal speed with data of their own. Run, on a virtual clock."""

from __future__ import annotations

import heapq
import math
import random

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

Job = tuple[tuple[float, ...], float, float, float]
EVEN = tuple(1 + 0.01 * i for i in range(8))
SLOW = (*EVEN[:7], 4.0)
UNEQUAL = tuple(round(8 ** (i / 7), 3) for i in range(8))
# Seconds per gradient of each worker, seconds per message, how far the workers' data differ, the loss to reach. With
# the best choice, which tests/course/test_choose_asynchronous.py finds by running every one.
ALIKE: dict[Job, Choice] = {
    (SLOW, 0.02, 0.0, 1e-3): ("plain", math.inf, 1.0),
    (UNEQUAL, 0.2, 0.0, 1e-3): ("divided", math.inf, 8.0),
}
OWN_DATA: dict[Job, Choice] = {
    (UNEQUAL, 0.02, 1.0, 5e-3): ("plain", 3, 0.5),
    (SLOW, 0.2, 1.0, 5e-3): ("plain", 9, 0.5),
}
ROUGH: dict[Job, Choice] = {
    (EVEN, 0.02, 1.0, 0.1): ("plain", 0, 1.0),
    (SLOW, 0.2, 1.0, 0.02): ("plain", 3, 1.0),
}


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
    return Simulated(run, CHOICES, job, (RULES, AHEAD, RATES), MOST)


PRACTICE = case(next(iter(ALIKE)))


def _require(answer: Answer, jobs: dict[Job, Choice], hint: str) -> None:
    for job, best in jobs.items():
        paces, message, spread, target = job
        where = (
            f"8 workers of {min(paces):g} to {max(paces):g} s per gradient, {message:g} s per message, "
            f"{'data of their own' if spread else 'data alike'}, to a loss of {target:g}"
        )
        require_near_best_of(
            best,
            answer,
            case(job),
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
