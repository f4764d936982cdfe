"""The signal comes to torchrun itself, as where a scheduler ends a job or a Pod: which of it reaches the ranks, what
they have time for, and that `--max-restarts` is for ranks that leave by themselves."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dtcourse.fault_tolerance import folders
from tests.fault_tolerance.preempted import HEARS
from tests.fault_tolerance.test_preemption import MINUTE, PROGRAM, environment, steps, wait_for
from tests.turns import takes_turns

ABOUT = ("dtcourse/fault_tolerance/", "tests/fault_tolerance/preempted.py")


def signalled(folder: Path, *numbers: signal.Signals, options: tuple[str, ...] = ()) -> str:
    """What a torchrun says that gets these signals in step 5. Its status is 1: that of the ranks, 85, is lost."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    job = subprocess.Popen(
        [*words, "--max-restarts=3", *options, str(PROGRAM), str(folder)],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        wait_for(folder / "pid")
        for number in numbers:
            job.send_signal(number)
        said, _ = job.communicate(timeout=4 * MINUTE)
    finally:
        if job.poll() is None:
            job.terminate()
            job.communicate()
    assert job.returncode == 1, said
    return said


def heard(folder: Path) -> str:
    """By rank 1, which waits for a signal; rank 0 may save by the agreement before its own comes."""
    return (folder / "heard-1").read_text()


@pytest.mark.slow
def test_sigterm_reaches_the_ranks_and_they_save_but_nobody_starts_them_again(tmp_path):
    # SIGURG first: torchrun does not hand it on.
    signalled(tmp_path, signal.SIGURG, signal.SIGTERM)
    assert heard(tmp_path) == "SIGTERM"
    assert folders.steps(tmp_path / "checkpoints") == [HEARS]
    assert steps(tmp_path) == [[*range(1, HEARS + 1)]] * 2  # of three restarts none


@pytest.mark.slow
@takes_turns(*ABOUT)
def test_another_signal_is_handed_on_where_torchrun_is_told_to(tmp_path):
    signalled(tmp_path, signal.SIGURG, options=("--signals-to-handle=SIGTERM,SIGURG",))
    assert heard(tmp_path) == "SIGURG"
    assert folders.steps(tmp_path / "checkpoints") == [HEARS]
    assert steps(tmp_path) == [[*range(1, HEARS + 1)]] * 2


@pytest.mark.slow
@takes_turns(*ABOUT)
def test_a_save_that_takes_longer_than_the_shutdown_timeout_is_cut_off(tmp_path):
    (tmp_path / "slow").touch()
    said = signalled(tmp_path, signal.SIGTERM, options=("--shutdown-timeout=1",))
    assert heard(tmp_path) == "SIGTERM"
    assert folders.steps(tmp_path / "checkpoints") == []
    assert "forcefully exiting via" in said
