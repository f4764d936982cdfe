"""Choices whose jobs are drawn: on many draws every right answer passes, and every wrong one fails somewhere.

An answer is called here, in this process, with a `measure` that looks up what all choices take: a draw costs what its
jobs cost. A check that rejects an answer by luck alone shows here, before it does in a student's run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from dtcourse.course.checks.lesson_09b_asynchronous_training import choose_asynchronous
from dtcourse.course.checks.lesson_11b_one_bit import choose_warm_up
from dtcourse.course.checks.lesson_21_mixture_of_experts import choose_update
from dtcourse.course.checks.lesson_24_debugging import choose_looks
from dtcourse.course.checks.lesson_24b_quiet_mistakes import choose_checks
from dtcourse.course.checks.lesson_28_federated import choose_method
from dtcourse.course.judging.drawing import drawing
from dtcourse.course.judging.simulated import Simulated
from dtcourse.course.judging.trial_ranks import measuring, named, place
from tests.course.test_exercises import ALL, answers, written

JUDGINGS = 3


def asynchronous() -> Iterable[Simulated]:
    for kinds in (
        choose_asynchronous.ALIKE,
        choose_asynchronous.OWN_DATA,
        choose_asynchronous.ROUGH,
    ):
        yield from choose_asynchronous.drawn(kinds)


def warm_ups() -> Iterable[Simulated]:
    for links in (choose_warm_up.SLOW, choose_warm_up.FAST):
        yield from map(choose_warm_up.case, choose_warm_up.drawn(links))


def updates() -> Iterable[Simulated]:
    for kinds in (choose_update.STEADY, choose_update.DRIFTING):
        yield from map(choose_update.case, choose_update.drawn(kinds))


def methods() -> Iterable[Simulated]:
    for alike in (True, False):
        yield from map(choose_method.case, choose_method.drawn(alike))


def looks() -> Iterable[Simulated]:
    yield from (choose_looks.case(*job) for job in ((40, 6.0), (12, 0.5), (60, 1.5)))


def checks() -> Iterable[Simulated]:
    yield choose_checks.case((14, 14, 0), (0.5, 2.0, 2.0))
    yield choose_checks.case((0, 12, 12), (4.0, 0.5, 0.5))
    yield choose_checks.case((10, 0, 12), (0.5, 1.0, 0.5))


# By exercise: all jobs of a judging, and how many times the best choice's number is good enough.
DRAWN: dict[str, tuple[Callable[[], Iterable[Simulated]], float]] = {
    "choose_asynchronous": (asynchronous, 1.01),
    "choose_warm_up": (warm_ups, 1.01),
    "choose_update": (updates, 1.01),
    "choose_method": (methods, choose_method.NEAR),
    "choose_looks": (looks, choose_looks.NEAR),
    "choose_checks": (checks, choose_checks.NEAR),
}


def every_answer(name: str) -> dict[str, tuple[bool, Callable[..., Any]]]:
    """{what it is called: (whether it is right, the function)}; the solution among them."""
    exercise = ALL[name]
    found = {"the solution": (True, ())}
    for kind in ("ACCEPTED", "MUTANTS", "NOTHING"):
        found |= {one[0]: (kind == "ACCEPTED", one[-1]) for one in answers(name, kind)}
    functions = {}
    for called, (right, answer) in found.items():
        namespace: dict[str, Any] = {"math": math}
        exec(written(exercise, answer), namespace)
        functions[called] = right, namespace[exercise.takes[0]]
    return functions


def is_good(case: Simulated, choose: Callable[..., Any], near: float) -> bool:
    """Whether its choice is nearly the best one."""
    measure, _ = measuring(case.choices, case.most, case.every.__getitem__)
    try:
        at = place(case.choices, named(case.choices, choose(measure, *case.told)))
    except Exception:  # it asks for too much, or for what is not there
        return False
    least = min(first for first, *_ in case.every)
    return at is not None and case.every[at][0] <= near * least


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", DRAWN)
def test_on_many_draws_right_answers_pass_and_wrong_ones_fail_somewhere(name):
    draw, near = DRAWN[name]
    functions = every_answer(name)
    for seed in range(JUDGINGS):
        with drawing(seed):
            cases = list(draw())
        for called, (right, choose) in functions.items():
            good = [is_good(case, choose, near) for case in cases]
            assert all(good) == right, f"{called}, draw {seed}: {good}"
