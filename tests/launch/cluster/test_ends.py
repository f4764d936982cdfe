"""Jobs that Slurm ends before their function does: what their ranks hear of it, and what they may still do."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from dtcourse.launch import sockets
from dtcourse.launch.cluster import batch, jobs, remote, slurm
from dtcourse.launch.cluster.record import JobFailed
from dtcourse.launch.cluster.throwaway import ThrowawaySlurm
from tests.launch.cluster.notebooks import own_settings, queue, until

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.stands_on("dtcourse/launch/", share=(1, 1)),
]


@pytest.fixture(scope="module")
def cluster():
    with ThrowawaySlurm(nodes=2, cpus=4, grace=10) as slurm:
        yield slurm


@pytest.fixture(autouse=True)
def settings(cluster, tmp_path, monkeypatch):
    file = own_settings(tmp_path, monkeypatch)
    yield file
    if queue():
        subprocess.run(["scancel", "--signal=KILL", "--user", str(os.getuid())], check=False)
        until(lambda: not queue())


def step(folder, ends_with="exit"):
    """Works until it is asked to end; then saves for a while, and ends. A second try says what the first one saved."""
    import signal
    import sys
    import time

    import torch.distributed as dist

    rank, heard = dist.get_rank(), []
    if int(os.environ.get("SLURM_RESTART_COUNT", 0)):
        with open(f"{folder}/saved-{rank}") as file:
            return file.read()

    def hear(number, _):
        heard.append(signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, hear)
    open(f"{folder}/begun-{rank}", "w").close()
    while not heard:
        time.sleep(0.01)
    time.sleep(0.5 + rank)  # the others are done before
    with open(f"{folder}/saved-{rank}", "w") as file:
        file.write(" ".join(heard))
    if ends_with == "exit":
        sys.exit(0)
    return "returned"


def waits(folder):
    import time

    import torch.distributed as dist

    open(f"{folder}/begun-{dist.get_rank()}", "w").close()
    time.sleep(600)


def submitted(tmp_path, function=step, **options):
    settings = remote.find("slurm")
    ((record, _),) = batch.submit(function, 4, settings, nodes=2, folder=str(tmp_path), **options)
    return record.job


def have_begun(tmp_path):
    return len(list(tmp_path.glob("begun-*"))) == 4


def saved(tmp_path):
    return [path.read_text() for path in sorted(tmp_path.glob("saved-*"))]


@pytest.fixture
def own():
    """A folder whose path is short: pytest's are in part too long for a socket's, and ranks take /tmp then."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


def test_ranks_of_a_job_that_is_cancelled_have_time_to_save_and_hear_of_it_once(
    tmp_path, own, monkeypatch
):
    """And no folder of theirs outlives the next process that makes one on their node."""
    monkeypatch.setenv("TMPDIR", str(own))
    job = submitted(tmp_path)
    until(lambda: have_begun(tmp_path))
    assert list(own.glob(f"{sockets.PREFIX}*")), "they have them here"
    slurm.cancel(job)
    with pytest.raises(JobFailed, match=rf"job {job} was cancelled$"):
        jobs.reattach(job, tmp_path / "jobs")
    until(lambda: not queue())
    assert saved(tmp_path) == ["SIGTERM"] * 4
    monkeypatch.setattr(sockets, "NEW", -1.0)
    sockets.sweep(own)
    assert {path.name.partition("_")[0] for path in own.iterdir()} <= {"torchinductor"}


def test_a_function_that_returns_after_the_signal_has_answered(tmp_path):
    job = submitted(tmp_path, ends_with="return")
    until(lambda: have_begun(tmp_path))
    subprocess.run(["scancel", "--signal=TERM", job], check=True)
    assert list(jobs.reattach(job, tmp_path / "jobs")) == ["returned"] * 4


def test_ranks_that_know_no_signal_end_at_once(tmp_path):
    job = submitted(tmp_path, waits)
    until(lambda: have_begun(tmp_path))
    subprocess.run(["scancel", "--signal=USR2", job], check=True)  # means nothing to it
    slurm.cancel(job)
    until(lambda: not queue())
    assert jobs.find(job, tmp_path / "jobs").state == "CANCELLED"


def test_the_signal_before_the_limit_lets_a_job_save_and_go_on(tmp_path, settings):
    settings.write_text(settings.read_text() + 'signal = "USR2@60"\n')
    job = submitted(tmp_path, requeue=True)
    until(lambda: have_begun(tmp_path))
    subprocess.run(["scontrol", "update", f"JobId={job}", "EndTime=now+60"], check=True)
    assert list(jobs.reattach(job, tmp_path / "jobs")) == ["SIGUSR2"] * 4


def test_a_job_that_is_preempted_saves_makes_room_and_goes_on_later(tmp_path):
    job = submitted(tmp_path, requeue=True)
    until(lambda: have_begun(tmp_path))
    urgent = ["sbatch", "--parsable", "--partition=urgent", "--nodes=2", "--exclusive"]
    urgent += ["--output=/dev/null", f"--wrap=touch {tmp_path}/urgent; sleep 2"]
    subprocess.run(urgent, check=True, capture_output=True)
    until((tmp_path / "urgent").exists)
    # The throw-away cluster sends a preempted job its own signal (preempt_send_user_signal).
    assert saved(tmp_path) == ["SIGUSR2"] * 4, "before the nodes were another's"
    assert list(jobs.reattach(job, tmp_path / "jobs")) == ["SIGUSR2"] * 4


def test_a_job_that_cannot_go_on_later_says_that_it_was_preempted(tmp_path):
    job = submitted(tmp_path, waits)
    until(lambda: have_begun(tmp_path))
    urgent = ["sbatch", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null"]
    subprocess.run([*urgent, "--wrap=true"], check=True, capture_output=True)
    with pytest.raises(JobFailed, match="was ended for a job of higher priority"):
        jobs.reattach(job, tmp_path / "jobs")
