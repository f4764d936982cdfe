"""Published runs: as many as there are, and errors that do not grow again."""

from __future__ import annotations

import statistics

import pytest

from dtcourse.planner import runs
from dtcourse.simulator.hardware import published

# Median and 90th percentile of the error of a step's seconds, with what was fitted to these runs: a little over what
# benchmarks/planner.py prints as "as it is". Errors on what nothing was fitted to are printed there.
BOUNDS = {"mpt": (139, 0.045, 0.16), "vtrain": (240, 0.075, 0.23), "torchtitan": (30, 0.06, 0.28)}


@pytest.mark.parametrize("source", BOUNDS)
def test_errors_stay_below_what_they_were(source):
    count, median, ninety = BOUNDS[source]
    found = runs.SOURCES[source]()
    assert len(found) == count
    errors = sorted(
        abs(run.predict().seconds / run.seconds - 1) for run in found[:: 1 if count < 200 else 3]
    )
    assert statistics.median(errors) < median
    assert errors[int(0.9 * len(errors))] < ninety


def test_memory_stays_as_close_to_what_was_measured():
    errors = [
        abs(run.predict().reserved_bytes / 2**30 / run.gib - 1)
        for run in runs.torchtitan()
        if run.gib
    ]
    assert len(errors) == 18 and statistics.median(errors) < 0.1


def test_utilisation_of_mpt_is_its_tables_own():
    """The table's MFU, from its tokens a second: the same convention."""
    rows = published("mpt_a100")["rows"]
    for row, run in zip(rows, runs.mpt(), strict=True):
        tokens = run.batch.sequences * run.model.sequence
        mfu = tokens * run.model.flops_per_token() / run.seconds / (run.gpus * run.hardware.peak)
        assert 100 * mfu == pytest.approx(row["mfu_pct"], rel=0.02)
