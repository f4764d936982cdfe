"""Real ranks that are killed, stopped, hung: each is named, and none that is well."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dtcourse import launch
from dtcourse.fault_tolerance.heard_beats import HeardBeats
from dtcourse.fault_tolerance.watching import Watcher, verdicts
from dtcourse.fault_tolerance.watching.places import Folder
from dtcourse.launch import Cancelled, RankFailure
from tests.fault_tolerance.watched import STEP, VICTIM, train

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("watched.py")
MINUTE = 60
BY_TURNS = pytest.mark.stands_on("dtcourse/fault_tolerance/watching/", "dtcourse/launch/")


def until(watcher, true):
    end = time.monotonic() + 2 * MINUTE
    while not true(look := watcher.look()):
        assert time.monotonic() < end, str(look)
        time.sleep(0.1)
    return look


def begun(look):
    return all((verdict.step or 0) > STEP for verdict in look.verdicts)


@pytest.fixture
def training(tmp_path):
    """Starts ranks that train until the test is over; returns who watches them."""
    handles = []

    def start(what, ranks=3):
        handles.append(launch(train, ranks, str(tmp_path), what, timeout=None, wait=False))
        return Watcher(tmp_path, ranks)

    yield start
    for handle in handles:
        handle.cancel()
        with pytest.raises((Cancelled, RankFailure)):
            handle.result()


@pytest.mark.parametrize(
    ("what", "says", "calls"),
    [
        ("spins", "in spins()", "while True:"),
        pytest.param("sleeps", "in sleeps()", "time.sleep(600)", marks=BY_TURNS),
        pytest.param("calls_alone", "waited in all_reduce()", "group=pair", marks=BY_TURNS),
    ],
)
def test_a_rank_that_hangs_is_named_with_its_line(what, says, calls, training):
    look = training(what).wait(2 * MINUTE)
    assert [fault.rank for fault in look.reasons] == [VICTIM], str(look)
    (fault,) = look.reasons
    assert (fault.kind, fault.step) == (verdicts.HUNG, STEP)
    assert f"rank {VICTIM} is hung: it beats" in str(look) and f"last step was {STEP}" in str(look)
    assert says in str(look).splitlines()[0] and what in fault.stacks, str(look)
    if what != "spins":
        assert calls in str(look)
    assert all(one.waits for one in look.faults if one is not fault), "the others wait for it"


@BY_TURNS
def test_a_rank_that_runs_and_cannot_beat_is_hung_and_not_dead(training):
    look = training("holds_the_lock").wait(2 * MINUTE)
    assert [(fault.rank, fault.kind) for fault in look.faults] == [(VICTIM, verdicts.HUNG)], look
    assert "runs, and has not beaten for" in str(look) and not look.faults[0].stacks


@BY_TURNS
def test_under_torchrun_a_rank_watches_the_others_over_the_store_that_is_there():
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    done = subprocess.run(
        [*words, str(PROGRAM)], env=environment(), capture_output=True, text=True, timeout=4 * MINUTE, check=False
    )  # fmt: skip
    said = [line for line in done.stdout.splitlines() if line.startswith("seen: ")]
    assert len(said) == 1, done.stdout + done.stderr
    assert said[0].startswith(f"seen: [{VICTIM}] rank {VICTIM} is hung: it beats"), said
    assert f"last step was {STEP}; it was in spins()" in said[0]


def environment():
    names = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "MASTER_", "SLURM_", "TORCHELASTIC_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    return clean | {"PYTHONPATH": str(ROOT)}


def test_a_stopped_rank_is_told_from_a_dead_one_and_goes_on(training):
    watcher = training("nothing")
    pid = until(watcher, begun).verdicts[VICTIM].pid
    os.kill(pid, signal.SIGSTOP)
    look = watcher.wait(2 * MINUTE)
    assert [(fault.rank, fault.kind) for fault in look.reasons] == [(VICTIM, verdicts.STOPPED)]
    assert "in state T" in str(look) and not look.reasons[0].stacks
    step = look.reasons[0].step
    os.kill(pid, signal.SIGCONT)
    look = until(watcher, lambda look: (look.verdicts[VICTIM].step or 0) > step + 3)
    assert look.verdicts[VICTIM].kind == verdicts.RUNS, (
        "the time in which it was stopped is no hang"
    )
    os.kill(pid, signal.SIGKILL)
    # launch ends the others as well
    look = until(watcher, lambda look: look.verdicts[VICTIM].kind == verdicts.DEAD)
    assert f"rank {VICTIM} is dead" in str(look) and f"({pid}) is gone" in str(look)


def test_a_new_start_takes_away_the_beats_and_nothing_else(tmp_path):
    folder = Folder(tmp_path)
    for rank in (0, 1):
        folder.write(rank, b"beat")
    (tmp_path / "notes.txt").write_text("a user's own")
    HeardBeats(tmp_path).begin(2)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]
    HeardBeats(tmp_path / "not there yet").begin(2)
