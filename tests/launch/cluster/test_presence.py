"""No job outlives the notebook that launched it, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from dtcourse import launch
from dtcourse.launch import send_message
from dtcourse.launch.cluster import presence, slurm
from dtcourse.launch.cluster.throwaway import ThrowawaySlurm
from tests.launch.cluster.notebooks import notebook, own_settings, queue, until

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.stands_on("dtcourse/launch/", share=(1, 1)),
]


@pytest.fixture(scope="module")
def cluster():
    with ThrowawaySlurm(nodes=2, cpus=4) as slurm:
        yield slurm


@pytest.fixture(autouse=True)
def settings(cluster, tmp_path, monkeypatch):
    file = own_settings(tmp_path, monkeypatch)
    yield file
    if queue():
        subprocess.run(["scancel", "--user", str(os.getuid())], check=False)
        until(lambda: not queue())


LAUNCHES = """
    import os, sys, time
    import torch.distributed as dist
    from dtcourse import launch
    from dtcourse.launch.cluster import presence

    def step(folder):
        open(f"{folder}/begun-{dist.get_rank()}", "w").close()
        while True:
            with open(f"{folder}/alive", "w") as file:
                file.write(str(time.time()))
            time.sleep(0.05)

    if __name__ == "__main__":
        if sys.argv[2] == "alone":
            presence.PATIENCE = 2.0
            presence._guard = lambda job: None
        launch(step, 2, sys.argv[1], nodes=2, cluster="slurm", timeout=None)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_notebook_that_is_ended_leaves_no_job_running(tmp_path, number):
    with notebook(tmp_path, LAUNCHES, tmp_path, "guarded") as process:
        until(lambda: (tmp_path / "begun-1").exists())
        process.send_signal(number)
        process.wait()
        until(lambda: not queue())
    last = (tmp_path / "alive").read_text()
    time.sleep(0.5)
    assert (tmp_path / "alive").read_text() == last, "its ranks are gone"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_notebook_that_is_ended_leaves_no_job_waiting(tmp_path, number):
    wrapped = ["--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=srun sleep 300"]
    subprocess.run(["sbatch", *wrapped], check=True, capture_output=True)
    (other,) = queue()
    with notebook(tmp_path, LAUNCHES, tmp_path, "guarded") as process:
        until(lambda: len(queue()) == 2)
        process.send_signal(number)
        process.wait()
        until(lambda: queue() == [other])


def test_ranks_end_by_themselves_where_nobody_is_left_to_cancel_their_job(tmp_path):
    """As where the login node has lost its power: neither the notebook nor its guard are there."""
    with notebook(tmp_path, LAUNCHES, tmp_path, "alone") as process:
        until(lambda: (tmp_path / "begun-1").exists())
        process.kill()
        process.wait()
        assert queue()
        until(lambda: not queue())


def test_a_job_that_waits_when_nobody_can_be_waiting_is_removed_by_slurm(settings):
    settings.write_text(settings.read_text() + "wait_minutes = 20\n")
    told = []

    def step():
        send_message(os.environ["SLURM_JOB_ID"])

    launch(
        *(step, 1),
        cluster="slurm",
        on_message=lambda _, job: told.append(slurm.details("job", job)),
    )
    given, deadline = (
        time.mktime(time.strptime(told[0][name], "%Y-%m-%dT%H:%M:%S"))
        for name in ("SubmitTime", "Deadline")
    )
    assert abs(deadline - given - 30 * 60) < 5, "20 minutes in the queue and 10 of its own"


def test_a_job_is_ended_after_as_many_seconds_of_silence_as_its_call_says(tmp_path):
    listener = presence.Listener(tmp_path, 60.0, now=0.0)
    assert not listener.is_silent(60.0) and listener.is_silent(61.0), "nothing was ever heard"
    (tmp_path / presence.HEARTBEAT).write_text("1 0")
    assert not listener.is_silent(61.0) and not listener.is_silent(121.0)
    (tmp_path / presence.HEARTBEAT).write_text("1 1")
    assert not listener.is_silent(121.0) and listener.is_silent(182.0)
    assert not presence.Listener(tmp_path, None, now=0.0).is_silent(1e9), "a batch job"


def test_the_guard_of_a_job_that_is_over_cancels_nothing(tmp_path, monkeypatch):
    calls = tmp_path / "calls"
    stand_in = tmp_path / "bin" / "scancel"
    stand_in.parent.mkdir()
    stand_in.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n')
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stand_in.parent}:{os.environ['PATH']}")
    for number in ("7", "8"):
        guarded = presence.Presence(tmp_path, number)
        if number == "7":
            guarded.close()
        else:
            guarded.forget()  # our end closes without a word, as when we die
    until(calls.exists)
    assert calls.read_text() == "--quiet 8\n"
