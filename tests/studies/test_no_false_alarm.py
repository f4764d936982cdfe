"""The study of heartbeats on a busy machine: what it found, and some of its runs again."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.turns import takes_turns


@pytest.fixture(scope="module")
def script(study):
    return study("no_false_alarm")


def test_a_hundred_healthy_runs_on_a_busy_machine_gave_no_alarm_and_each_hang_was_told(script):
    results = json.loads(script.RESULTS.read_text())
    assert results == script.load(script.RESULTS, script.Settings())
    runs = results["runs"]
    assert list(runs) == [name for name, _ in script.jobs(script.Settings(), results["seeds"])]
    healthy = {name: run for name, run in runs.items() if not name.startswith(script.HANG)}
    assert len(healthy) >= 100
    assert not any(run["alarms"] for run in healthy.values())
    assert all(run["load"] > 2 * results["machine"]["cores"] for run in runs.values()), "busy"
    for name in runs.keys() - healthy.keys():
        assert runs[name]["reasons"] == [1] and "rank 1 hung" in runs[name]["alarms"], name
    assert all(run["looks"] > 5 for run in runs.values())


@pytest.mark.slow
@pytest.mark.timeout(600)
@takes_turns("dtcourse/fault_tolerance/watching/", "studies/no_false_alarm.py")
def test_one_run_of_each_kind(script, tmp_path):
    """As a program: ranks that come from a script which stands on no path do not find it."""
    out = tmp_path / "found.json"
    done = subprocess.run(
        [sys.executable, script.__file__, "--seeds=1", "--legal=5.5", f"--out={out}"],
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert "6 runs; complete" in done.stdout, done.stderr
    for name, run in json.loads(out.read_text())["runs"].items():
        assert (run["reasons"] == [1]) if name.startswith(script.HANG) else not run["alarms"], name
