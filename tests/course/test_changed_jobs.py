"""The best changes of exercise 23-3, by running every two; its traces are of what was run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dtcourse.course.checks.lesson_23_profiling import changed_jobs, drawn_jobs, two_changes
from dtcourse.course.judging.drawing import drawing

STANDS_ON = (
    "dtcourse/course/checks/lesson_23_profiling/changed_jobs.py",
    "dtcourse/course/checks/lesson_23_profiling/drawn_jobs.py",
)


@pytest.mark.stands_on(*STANDS_ON)
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_is_predicted_to_be_best_is_best_when_every_two_changes_are_run():
    job = changed_jobs.drawn(hidden=True, best=lambda two: "workers" in two)
    every = [changed_jobs.changed(job, two) for two in changed_jobs.CHOICES]
    ran = changed_jobs.measured(every)
    # A rank that comes late finds others' messages there already: up to a few latencies.
    assert ran == pytest.approx([drawn_jobs.seconds(one) for one in every], rel=0.02)
    best = changed_jobs.CHOICES.index(changed_jobs.predicted_best(job))
    assert ran[best] == min(ran)
    assert sorted(ran)[1] > 1.03 * ran[best]


def test_draws_keep_what_they_promise_and_have_more_than_one_best():
    for hidden in (False, True):
        found = set()
        for wanted in (True, False):
            job = changed_jobs.drawn(
                hidden=hidden, best=lambda two, w=wanted: ("workers" in two) == w
            )
            best = changed_jobs.predicted_best(job)
            assert (changed_jobs.most_alone(job) != best) == hidden
            found.add(best)
        assert len(found) == 2


def test_who_overlooks_what_is_repeated_is_asked_about_that():
    """The judge's sentence is about the first job that is wrong: of one in twelve it was the slow rank's."""
    with drawing(10):
        for _ in range(2):
            first, second = two_changes.drawn_alone()
            best, seems = (
                [changed_jobs.predicted_best(replace(job, repeats=n)) for n in (job.repeats, 0)]
                for job in (first, second)
            )
            assert best == [("card", "workers")] * 2
            right, choice = seems
            assert right == ("card", "keep") and "card" in choice
            assert "How often does each layer's forward run" in two_changes._hint(
                second, choice, right
            )


def test_changes_change_what_their_names_say():
    job = changed_jobs.drawn(hidden=False, best=lambda two: True)
    assert changed_jobs.changed(job, ("card",)).speed == (1.0,) * changed_jobs.RANKS
    assert changed_jobs.changed(job, ("workers",)).load == job.load / 2
    merged = changed_jobs.changed(job, ("buckets",)).buckets
    assert [layer for one in merged for layer in one] == [
        layer for one in job.buckets for layer in one
    ]
    assert len(merged) == (len(job.buckets) + 1) // 2
