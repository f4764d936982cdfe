"""A decision about a job in one process: who runs it, and how often."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from dtcourse.course.judging.requirements import Unjudged
from dtcourse.course.judging.runs import InKernel
from dtcourse.course.judging.simulated import Simulated

pytestmark = pytest.mark.slow
CHOICES = [(1, True), (1, False), (2, False)]


def where(choice, factor):
    """The process that ran it, and the choice."""
    return float(os.getpid()), factor * choice[0]


CASE = Simulated(where, CHOICES, (3.0,), ("told",), 2)


def test_what_is_run_beforehand_is_run_by_the_judge_and_looked_up_beside_the_answer():
    for beforehand in (False, True):
        case = replace(CASE, beforehand=beforehand)
        found = case.tried(InKernel({"choose": lambda measure, told: (measure(2, False), 2)}))
        assert not found.measured
        ((choice, (process, number)),) = found.seen
        assert choice == (2, False) and number == 6.0
        assert (process == os.getpid()) == beforehand


def test_it_is_run_once_for_all_that_is_asked_of_a_case():
    ran = []

    def job(choice):
        ran.append(choice)
        return (float(len(ran)),)

    case = Simulated(job, CHOICES, (), (), 2, beforehand=True)
    first = case.search()
    assert list(first.values()) == [(1.0,), (2.0,), (3.0,)] and case.search() == first
    assert [case.measured(choice) for choice in CHOICES] == list(first.values())
    assert ran == CHOICES


def breaks(choice):
    raise MemoryError("none left")


def test_one_that_fails_beforehand_gives_no_verdict():
    case = Simulated(breaks, CHOICES, (), (), 2, beforehand=True)
    with pytest.raises(Unjudged, match=r"MemoryError \(none left\)"):
        case.tried(InKernel({"choose": lambda measure: (2, False)}))
