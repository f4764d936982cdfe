"""Runs of a study that other programs disturbed."""

from __future__ import annotations

import itertools

import pytest

from dtcourse.course import other_programs


@pytest.fixture
def counted(monkeypatch):
    """Processor seconds of all programs: counted[0], which a test moves. A run takes 100 s by the clock."""
    seconds, clock = [0.0], itertools.count(0.0, 100.0)
    monkeypatch.setattr(other_programs, "machine_seconds", lambda: seconds[0])
    monkeypatch.setattr(other_programs, "processor_seconds", lambda: 0.0)
    monkeypatch.setattr(other_programs.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(other_programs.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(other_programs.time, "sleep", lambda _: None)
    return seconds


def test_a_disturbed_run_is_made_again_and_the_least_disturbed_kept(counted):
    taken, made = iter([180.0, 60.0, 100.0]), []

    def run():
        made.append(len(made))
        counted[0] += next(taken)
        return {"number": made[-1]}

    found = other_programs.undisturbed(run, 0.05, 3)
    assert made == [0, 1, 2]
    assert (found["number"], found["others"], found["seconds"]) == (1, 0.3, 100.0)


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
