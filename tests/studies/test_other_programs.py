"""Runs of a study that other programs disturbed."""

from __future__ import annotations

import pytest

from dtcourse.course import other_programs


@pytest.fixture
def counted(monkeypatch):
    """Processor seconds of all programs: counted[0], which a test moves."""
    seconds = [0.0]
    monkeypatch.setattr(other_programs, "machine_seconds", lambda: seconds[0])
    monkeypatch.setattr(other_programs.time, "sleep", lambda _: None)
    return seconds


def test_a_disturbed_run_is_made_again_and_the_least_disturbed_kept(counted):
    taken, made = iter([9.0, 3.0, 5.0]), []

    def run():
        made.append(len(made))
        counted[0] += next(taken) * 1000
        return {"number": made[-1]}

    found = other_programs.undisturbed(run, 0.05, 3)
    assert made == [0, 1, 2]
    assert found["others"] > 0.05
    # Each run takes about as long, and the second one lost the least.
    assert found["number"] in (1, 2)


def test_a_quiet_run_is_made_once(counted):
    made = []
    found = other_programs.undisturbed(lambda: made.append(1) or {}, 0.05, 3)
    assert len(made) == 1
    assert found["others"] == 0


def test_what_launched_ranks_took_is_not_others(counted):
    def run():
        counted[0] += 1000.0
        return {"own": 1000.0}

    found = other_programs.undisturbed(run, 0.05, 1)
    assert found["others"] == 0
    assert "own" not in found
