"""How many devices, and which batch, for a deadline: a training is planned, on a clock of its own."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

from dtcourse.course.checks.lesson_30_extreme_scale.goodputs import goodput
from dtcourse.course.judging import Answer, Exercise, require, require_near_best
from dtcourse.course.judging.simulated import Simulated
from dtcourse.course.judging.trials import Choice, require_possible
from dtcourse.fault_tolerance import FailingJob

CHOOSE = Exercise(
    "choose_size",
    lesson="30",
    title="How many devices, and which batch?",
    takes=("choose_size",),
    target="on 6 jobs, drawn anew each time, in time, and at most 1.01 times the GPU-days of the best choice; at most "
    "26 of 80 choices tried",
    forbidden=("dtcourse.fault_tolerance", "dtcourse.planner"),
)

SIZES = tuple(256 * 2**n for n in range(8))
BATCHES = tuple(96 * 2**n for n in range(10))
CHOICES: list[Choice] = list(itertools.product(SIZES, BATCHES))
MIDDLE = BATCHES[2:7]
MOST, NEAR = 26, 1.01
DEADLINES = (20.0, 30.0, 45.0, 60.0)  # days
LAST = 5  # place in SIZES of the largest that is right somewhere
DAY = 86_400
# Of a training: device-seconds of a sequence; seconds of a step that no device shares; the same for each doubling of
# the devices; steps without noise; the critical batch, in sequences; seconds between failures of one device; of a save;
# of a restart.
Training = tuple[float, float, float, float, float, float, float, float]


def days(
    choice: Choice, work: float, fixed: float, wider: float, steps: float, critical: float, lifetime: float,
    save: float, restart: float,
) -> tuple[float]:  # fmt: skip
    """Until the loss is reached. Arguments as in a Training."""
    devices, sequences = choice
    step = work * sequences / devices + fixed + wider * math.log2(devices)
    useful = goodput(FailingJob(save, lifetime / devices, restart))
    return (steps * (1 + critical / sequences) * step / useful / DAY,)


def best_days(training: Training) -> list[float]:
    """By size, with its best batch."""
    return [min(days((size, batch), *training)[0] for batch in BATCHES) for size in SIZES]


Job = tuple[Training, float]  # and the deadline in days


def case(job: Job) -> Simulated:
    """A job, as an answer gets it."""
    training, deadline = job
    told = (list(SIZES), list(BATCHES), deadline)
    return Simulated(days, CHOICES, training, told, MOST)


def right(job: Job, batches: Sequence[int] = BATCHES) -> tuple[Choice, float]:
    """(the best choice of one of these batches, its GPU-days); ((), inf) where none is in time."""
    training, deadline = job
    found = {choice: days(choice, *training)[0] for choice in itertools.product(SIZES, batches)}
    costs = {one: one[0] * took for one, took in found.items() if took <= deadline}
    return min(costs.items(), key=lambda item: item[1], default=((), math.inf))


def drawn(failing: bool) -> list[Job]:
    """Three of them, in any order: of few devices, of some, and of many.

    failing: whether devices fail so often that it decides how many are needed

    The deadline is drawn first, and the number of steps follows from it and from the number of devices that is to be
    right: so that the deadline tells nothing of it.
    """
    found = []
    # In each pair one place is even and one odd: every second size is not enough.
    places = (1, *random.choice(((2, LAST), (3, 4))))
    elsewhere = random.choice(places)
    for place in places:
        deadline = random.choice(DEADLINES)
        while True:
            training = (
                random.uniform(6, 20), random.uniform(0.3, 4.0), random.uniform(0.0, 0.1), 1.0,
                random.choice((150, 1500, 15_000, 150_000)) * random.uniform(0.8, 1.25),
                random.uniform(2e7, 5e7) if failing else random.uniform(4e8, 8e8),
                random.uniform(20, 60), random.uniform(300, 900),
            )  # fmt: skip
            per_step = best_days(training)
            # The size before is too late by as much as this one is early; the one behind costs more.
            dearer = 2 * per_step[place + 1] / per_step[place]
            if per_step[place - 1] < 1.15 * per_step[place] or dearer < 1.03:
                continue
            steps = deadline / math.sqrt(per_step[place - 1] * per_step[place])
            job = ((*training[:3], steps, *training[4:]), deadline)
            (size, _), least = right(job)
            # In one of the three no batch of the table's middle will do, for which all tries would be enough.
            if size == SIZES[place] and (
                place != elsewhere or right(job, MIDDLE)[1] > NEAR * least
            ):
                found.append(job)
                break
    random.shuffle(found)
    return found


PRACTICE = case(((10.0, 1.0, 0.05, 40_000.0, 2000.0, 4e8, 30.0, 600.0), 30.0))


def _require(answer: Answer, jobs: list[Job], hint: str) -> None:
    for job in jobs:
        deadline = job[1]
        _, least = right(job)
        tried = case(job).tried(answer)
        where = f"A training that has to end within {deadline:g} days"
        why = f"Possible are {SIZES} devices, with {BATCHES} sequences per step."
        (took,) = require_possible(where, tried, CHOICES[len(CHOICES) // 2], why)
        require(
            took <= deadline,
            f"{where}: {tried.choice!r} takes {took:.4g}. Have you measured it, and is it in time? If none of "
            "yours is: what do more devices do, and another batch?",
        )
        cost = tried.choice[0] * took
        require_near_best(where, tried.choice, cost, least, "GPU-days", hint, NEAR)


@CHOOSE.check("where devices hardly fail", points=5)
def check_lasting(answer: Answer) -> None:
    """The batch and the step decide."""
    _require(
        answer,
        drawn(failing=False),
        "Which batch is best for each number of devices, and what do more devices than are needed cost?",
    )


@CHOOSE.check("where they fail often", points=5)
def check_failing(answer: Answer) -> None:
    """More devices add failures, too."""
    _require(
        answer,
        drawn(failing=True),
        "How many GPU-days does each number of devices take with its best batch, and which is the first in time?",
    )
