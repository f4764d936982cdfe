"""One rank hears a signal: all save after the same step, leave, and go on from there when they are started again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dtcourse import launch
from dtcourse.fault_tolerance import REQUEUE, Preemption, folders, run_until_done
from dtcourse.launch import RankFailure
from tests.fault_tolerance.preempted import HEARS, STEPS, train

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("preempted.py")
MINUTE = 60


def wait_for(path: Path, seconds: float = 2 * MINUTE) -> str:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} has not come in {seconds} s"
        time.sleep(0.02)
    return path.read_text()


def signalled(folder: Path, number: signal.Signals) -> threading.Thread:
    """A thread that sends the signal to the rank that waits for one, from outside."""
    thread = threading.Thread(target=lambda: os.kill(int(wait_for(folder / "pid")), number))
    thread.start()
    return thread


def steps(folder: Path) -> list[list[int]]:
    return [
        [int(step) for step in path.read_text().split()] for path in sorted(folder.glob("log-*"))
    ]


@pytest.mark.parametrize(
    ("number", "every", "leaves"), [(signal.SIGTERM, 1, HEARS), (signal.SIGURG, 3, 6)]
)
def test_under_launch_all_ranks_save_after_one_step_and_go_on_from_it(
    number, every, leaves, tmp_path
):
    starts = []

    def start():
        starts.append(None)
        return launch(train, 3, str(tmp_path), every)

    thread = signalled(tmp_path, number)
    run = run_until_done(start)
    thread.join()
    assert len(starts) == 2
    assert steps(tmp_path) == [[*range(1, leaves + 1), *range(leaves + 1, STEPS + 1)]] * 3
    assert folders.steps(tmp_path / "checkpoints") == [leaves]
    assert run[0] == run[1] == run[2]


def test_who_fails_is_not_started_again():
    starts = []

    def fails():
        starts.append(None)
        return launch(sys.exit, 2, 1)

    with pytest.raises(RankFailure, match=r"sys\.exit"):
        run_until_done(fails)
    assert len(starts) == 1
    with pytest.raises(RankFailure, match=f"sys.exit\\({REQUEUE}\\)"):
        run_until_done(lambda: launch(sys.exit, 1, REQUEUE), attempts=2)


def environment() -> dict[str, str]:
    names = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "MASTER_", "SLURM_", "TORCHELASTIC_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    return clean | {"PYTHONPATH": str(ROOT)}


@pytest.mark.stands_on("dtcourse/fault_tolerance/", "dtcourse/launch/")
def test_under_torchrun_the_ranks_are_started_again_and_go_on(tmp_path):
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    thread = signalled(tmp_path, signal.SIGURG)
    done = subprocess.run(
        [*words, "--max-restarts=1", str(PROGRAM), str(tmp_path)],
        env=environment() | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        capture_output=True, text=True, timeout=4 * MINUTE, check=False,
    )  # fmt: skip
    thread.join()
    assert done.returncode == 0, done.stderr
    assert steps(tmp_path) == [[*range(1, STEPS + 1)]] * 2
    assert folders.steps(tmp_path / "checkpoints") == [HEARS]
    assert wait_for(tmp_path / "end-0") == wait_for(tmp_path / "end-1")


BATCH = """#!/bin/bash
#SBATCH --ntasks=2 --requeue --open-mode=append --output={folder}/out
export MASTER_PORT={port}
srun {python} {program} {folder}
[ $? -eq 85 ] && scontrol requeue $SLURM_JOB_ID
"""


@pytest.mark.slurm
@pytest.mark.slow
@pytest.mark.stands_on("dtcourse/fault_tolerance/", "dtcourse/launch/cluster/")
def test_under_slurm_the_job_asks_to_be_started_again_and_goes_on(tmp_path):
    from dtcourse.launch.cluster.throwaway import ThrowawaySlurm

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = BATCH.format(folder=tmp_path, port=port, python=sys.executable, program=PROGRAM)
    with ThrowawaySlurm(nodes=1, cpus=4):
        job = subprocess.run(
            ["sbatch", "--parsable"], input=script, env=environment() | {"SLURM_CONF": os.environ["SLURM_CONF"]},
            capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
        wait_for(tmp_path / "pid")
        subprocess.run(["scancel", "--signal=URG", job], check=True)
        wait_for(tmp_path / "end-0", 4 * MINUTE)
        wait_for(tmp_path / "end-1", MINUTE)
    assert steps(tmp_path) == [[*range(1, STEPS + 1)]] * 2
    assert folders.steps(tmp_path / "checkpoints") == [HEARS]


def test_what_cannot_be():
    with pytest.raises(ValueError, match="every is a number of steps, 1 or more; got 0"):
        Preemption(every=0)
    with pytest.raises(ValueError, match="SIGUSR1 cannot be the warning: launch asks for stacks"):
        Preemption(signal.SIGUSR1)
    with pytest.raises(ValueError, match="attempts is a number of starts, 1 or more; got 0"):
        run_until_done(list, 0)
    said = []

    def elsewhere():
        try:
            Preemption().__enter__()
        except ValueError as error:
            said.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "only the main thread gets signals" in said[0]


def test_the_handlers_of_before_come_back():
    before = signal.getsignal(signal.SIGTERM)
    with Preemption() as preemption:
        os.kill(os.getpid(), signal.SIGURG)
        assert preemption.heard == [signal.SIGURG]
    assert signal.getsignal(signal.SIGTERM) == before
