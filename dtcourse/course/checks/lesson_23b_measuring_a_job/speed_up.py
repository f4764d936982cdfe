"""An interval for a speed-up, from the times of two runs' steps: judged by how often it holds the truth."""

from __future__ import annotations

from typing import Any

from dtcourse.course.checks.lesson_23b_measuring_a_job import drawn_steps
from dtcourse.course.judging import Answer, Exercise, call_each, require

SPEED_UP = Exercise(
    "speed_up",
    lesson="23b",
    title="Has it become faster?",
    takes=("speed_up",),
    target="of 200 pairs of runs of each kind at least 85 % of the intervals hold the true speed-up, and half of them "
    "are narrower than 8 % of it where steps vary one by one, 20 % where they vary in spells",
    forbidden=("dtcourse.profiling",),
)

EACH, LEAST = 200, 0.85


def _require(answer: Answer, spells: bool, widest: float, hint: str) -> None:
    cases = [drawn_steps.drawn(spells=spells) for _ in range(EACH)]
    said = call_each(answer, [(before, after) for before, after, _ in cases], timeout=60.0)
    held, low_side, widths = 0, 0, []
    for (*_, truth), got in zip(cases, said, strict=True):
        low, high = _interval(got)
        held += low <= truth <= high
        low_side += high < truth
        widths.append((high - low) / truth)
    missed = EACH - held
    require(
        held >= LEAST * EACH,
        f"{held} of {EACH} intervals hold the true speed-up, and {LEAST:.0%} have to; of the others {low_side} are "
        f"below it, and {missed - low_side} above. {hint}",
    )
    middle = sorted(widths)[EACH // 2]
    require(
        middle <= widest,
        f"Half of the intervals are wider than {middle:.1%} of the speed-up, and {widest:.0%} is the most. What makes "
        "them so wide: which steps are in them, and which are left out?",
    )


def _interval(got: Any) -> tuple[float, float]:
    require(
        isinstance(got, (list, tuple)) and len(got) == 2 and got[0] <= got[1],
        f"An interval is a pair (low, high), such as (1.02, 1.07); got {got!r}.",
    )
    return float(got[0]), float(got[1])


@SPEED_UP.check("steps that vary one by one", points=3)
def check_alone(answer: Answer) -> None:
    """Each rank by itself."""
    _require(
        answer,
        False,
        0.08,
        "What does a step take when each rank is late by chance, which steps are not like the others, and how far can "
        "a mean of so many steps be off?",
    )


@SPEED_UP.check("steps that vary in spells", points=4)
def check_spells(answer: Answer) -> None:
    """A step is like the one before."""
    _require(
        answer,
        True,
        0.20,
        "A slow step is followed by slow ones. How many steps tell something new, and what varies like independent "
        "ones?",
    )
