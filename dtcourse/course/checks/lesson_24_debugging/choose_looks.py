"""How often replicas are compared: jobs with faults, each run in one process."""

from __future__ import annotations

import random

from dtcourse.course.judging import Answer, Exercise, trials
from dtcourse.course.judging.simulated import Simulated, require_near_best_of

CHOOSE = Exercise(
    "choose_looks",
    lesson="24",
    title="How often to look",
    takes=("choose_looks",),
    target="in 3 jobs at most 1.07 times the time of the best of 8 choices; at most 4 of them tried",
    forbidden=("dtcourse.debugging",),
)

STEPS, STEP, MOST, NEAR = 144, 1.0, 4, 1.07
CHOICES: list[trials.Choice] = [(every,) for every in (2, 3, 4, 6, 8, 12, 16, 24)]
LAST = 1500  # the step after which nothing happens any more, so that each job ends


def job(
    choice: tuple[int], steps: int, step_seconds: float, look_seconds: float, faults: set[int]
) -> tuple[float]:
    """The seconds until so many steps are done that no fault is in.

    faults: after how many steps performed something spoils a rank's weights
    """
    (every,) = choice
    performed = done = good = looks = 0
    spoiled = False
    while good < steps:
        performed, done = performed + 1, done + 1
        spoiled |= performed in faults
        if done % every == 0 or done == steps:
            looks += 1
            # All go back to the copy of the last look that was good, or make one.
            good = good if spoiled else done
            done, spoiled = good, False
    return (performed * step_seconds + looks * look_seconds,)


def case(mean: int, look_seconds: float) -> Simulated:
    """Faults come after about `mean` steps, drawn anew."""
    faults, at = set[int](), 0
    while at < LAST:
        at += random.randint(mean // 2, mean + mean // 2)
        faults.add(at)
    told = (STEPS, STEP, look_seconds)
    return Simulated(job, CHOICES, (*told, faults), told, MOST, beforehand=True)


PRACTICE = case(24, 1.0)


def _require(answer: Answer, mean: int, look_seconds: float, hint: str) -> None:
    drawn = case(mean, look_seconds)
    require_near_best_of(
        drawn.best(),
        answer,
        drawn,
        f"A look takes {look_seconds:g} s and a step {STEP:g} s",
        f"A choice is one of {', '.join(str(one[0]) for one in CHOICES)}.",
        hint,
        NEAR,
    )


@CHOOSE.check("a look is dear", points=3)
def check_dear(answer: Answer) -> None:
    """It takes six steps."""
    _require(
        answer, 40, 6.0,
        "How much of the run are looks, and how much is done twice? Which of the two does your choice leave out?",
    )  # fmt: skip


@CHOOSE.check("faults are many", points=3)
def check_many(answer: Answer) -> None:
    """One in about twelve steps."""
    _require(
        answer, 12, 0.5,
        "How long is it from one fault to the next here, and how many of your stretches between two looks have none in "
        "them? What you have measured says so.",
    )  # fmt: skip


@CHOOSE.check("faults are few", points=3)
def check_few(answer: Answer) -> None:
    """One in about sixty steps."""
    _require(
        answer, 60, 1.5,
        "What does a stretch that has to be done again cost, how often does that happen, and what do the looks cost?",
    )  # fmt: skip
