"""The part of a failing job's time that counts, as two exercises judge it."""

from __future__ import annotations

from dtcourse.fault_tolerance import FailingJob, best_interval, expected_waste


def goodput(job: FailingJob, every: float | None = None) -> float:
    """With so many seconds between saves; None: with the best number of them."""
    if every is None:
        every = best_interval(
            lambda seconds: expected_waste(job, seconds), 1e-3 * job.save, 4 * job.mtbf
        )
    return 1 - expected_waste(job, every)
