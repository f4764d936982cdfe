"""What launch does when something goes wrong: one clear error, no process left, and the next launch works.

Every test here ends with `aftermath`, which checks the last two.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings

import psutil
import pytest
import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.launch import RankFailure, RankTimeout, server, standby
from dtcourse.launch.rank_process import RankProcess
from tests.launch.settling import LONG_PLAY, settle


def ranks_alive():
    """Processes that come from the fork server and still live, but for those that wait for the next launch."""
    if server.pid() is None or not psutil.pid_exists(server.pid()):
        return []
    children = psutil.Process(server.pid()).children(recursive=True)
    waiting = standby.pids()
    return [c for c in children if c.pid not in waiting and c.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(autouse=True)
def aftermath():
    yield
    assert ranks_alive() == []
    assert list(launch(dist.get_rank, 2)) == [0, 1]


def test_one_rank_raises_while_the_others_wait_for_it():
    def step():
        if dist.get_rank() == 1:
            raise KeyError("no such shard")
        dist.barrier()

    with pytest.raises(RankFailure) as caught:
        launch(step, 4)
    message = str(caught.value)
    assert caught.value.rank == 1
    assert message.startswith("rank 1 of 4 raised KeyError: 'no such shard'")
    assert 'raise KeyError("no such shard")' in message, "its own source line"
    assert "launch/rank.py" not in message, "no frames of ours"
    assert "ranks 0, 2, 3" in message
    assert isinstance(caught.value.__cause__, KeyError)


def test_the_first_of_two_failures_comes_first_though_its_rank_is_higher():
    def step():
        if dist.get_rank() == 2:
            raise ValueError("first")
        time.sleep(0.1)
        if dist.get_rank() == 1:
            raise ValueError("second")
        dist.barrier()

    with pytest.raises(RankFailure) as caught:
        launch(step, 3)
    assert caught.value.rank == 2
    assert [f.rank for f in caught.value.failures] == [2, 1]
    assert "after it, rank 1 raised ValueError: second" in str(caught.value)


@pytest.mark.parametrize(
    ("die", "says"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "was killed by SIGKILL"),
        (lambda: ctypes.string_at(0), "was killed by SIGSEGV"),
        (lambda: os.abort(), "was killed by SIGABRT"),
        (lambda: sys.exit(3), r"called sys.exit(3) before it returned"),
        (lambda: sys.exit(), r"called sys.exit(None) before it returned"),
        (lambda: os._exit(3), "left with exit code 3 before it returned"),
        (lambda: os._exit(0), "left with exit code 0 before it returned"),
    ],
    ids=[
        "SIGKILL",
        "SIGSEGV",
        "SIGABRT",
        "sys.exit(3)",
        "sys.exit()",
        "os._exit(3)",
        "os._exit(0)",
    ],
)
def test_a_rank_that_goes_away_is_named_with_how(die, says):
    def step():
        if dist.get_rank() == 1:
            die()
        dist.barrier()

    with pytest.raises(RankFailure) as caught:
        launch(step, 2)
    assert str(caught.value).startswith(f"rank 1 of 2 {says}")


def test_a_crash_leaves_its_python_stack():
    def crash_here():
        ctypes.string_at(0)

    with pytest.raises(RankFailure, match=r"in crash_here"):
        launch(crash_here, 1)


def test_a_receive_that_never_comes():
    def step():
        if dist.get_rank() == 0:
            dist.recv(torch.zeros(1), src=1)

    start = time.monotonic()
    with pytest.raises(RankTimeout) as caught:
        launch(step, 2, timeout=1)
    assert time.monotonic() - start >= 1
    assert "waited in recv(), called in step()" in caught.value.waiting[0]
    assert "dist.recv(torch.zeros(1), src=1)" in caught.value.waiting[0]
    assert caught.value.waiting[1] == "had returned from the function"
    assert "not done after 1 s" in str(caught.value)


def test_a_collective_that_one_rank_skips():
    def step():
        if dist.get_rank() != 2:
            dist.all_reduce(torch.zeros(1))
        else:
            dist.barrier()

    with pytest.raises(RankTimeout) as caught:
        launch(step, 3, timeout=1)
    assert "waited in all_reduce()" in caught.value.waiting[0]
    assert "waited in barrier()" in caught.value.waiting[2]
    assert str(caught.value).count("stack of rank") == 3


def test_a_rank_that_loops_for_ever():
    def spin():
        while True:
            pass

    with pytest.raises(RankTimeout, match=r"rank 0 was in spin\(\)"):
        launch(spin, 1, timeout=1)


def test_the_time_limit_is_the_functions_own():
    """What comes before it (here, an argument that takes its time to arrive) is not counted:
    a busy machine is no fault."""

    class Slow:
        def __reduce__(self):
            return time.sleep, (1.5,)

    assert list(launch(lambda late: dist.get_rank(), 2, Slow(), timeout=1)) == [0, 1]


def test_a_function_that_cannot_be_pickled_names_the_object():
    lock = threading.Lock()

    def step():
        return lock

    with pytest.raises(
        TypeError, match=r"the enclosing variable 'lock' is a lock.*create it inside the function"
    ):
        launch(step, 2)
    with pytest.raises(TypeError, match=r"argument 'x'\['deep'\]\[1\] is a lock"):
        launch(lambda x: x, 2, x={"deep": [1, lock]})


def test_a_result_that_cannot_be_pickled_names_the_object():
    def step():
        return {"loss": 1.0, "lock": threading.Lock()}

    with pytest.raises(
        RankFailure, match=r"the result\['lock'\] is a lock, which cannot be sent to the notebook"
    ):
        launch(step, 2)


def test_an_exception_that_cannot_be_pickled_still_arrives_as_text():
    def step():
        class Odd(Exception):
            def __init__(self):
                super().__init__("odd")
                self.lock = threading.Lock()

        raise Odd

    with pytest.raises(RankFailure, match="raised Odd: odd"):
        launch(step, 1)


@pytest.mark.parametrize("size", [0, -1, "4", 2.0, True, None])
def test_a_world_size_that_is_none(size):
    with pytest.raises(ValueError, match=rf"world_size is the number of ranks.*got {size!r}"):
        launch(dist.get_rank, size)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"backend": "carrier-pigeon"},
            "there is no backend 'carrier-pigeon'; known are gloo, nccl, mpi, .*ring",
        ),
        ({"nodes": 3}, "4 ranks cannot be laid out as 3 nodes"),
        ({"timeout": 0}, "timeout is in seconds"),
        ({"threads": 0}, "threads is the number"),
        ({"device": "tpu"}, 'device is "cpu", "cuda" or None'),
        ({"colour": "red"}, r"cannot be called so: .*colour"),
    ],
)
def test_what_cannot_be_asked_for_is_said_before_anything_starts(options, says):
    with pytest.raises(ValueError, match=says):
        launch(lambda: None, 4, **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_more_gpus_than_there_are():
    with pytest.raises(ValueError, match="shows no GPU"):
        launch(dist.get_rank, 2, device="cuda")
    with pytest.raises(
        ValueError, match="needs a GPU for every rank: 2 asked for, 0 on this machine"
    ):
        launch(dist.get_rank, 2, backend="nccl")


def test_a_parameter_that_launch_keeps_for_itself():
    with pytest.raises(
        ValueError, match=r"launch keeps 'device' for itself: give functools.partial"
    ):
        launch(lambda device: device, 2, device="cpu")


@pytest.mark.parametrize(
    "ask", [lambda: input("?"), lambda: breakpoint()], ids=["input", "breakpoint"]
)
def test_nobody_answers_in_a_rank(ask):
    with pytest.raises(RankFailure, match="inside a rank"):
        launch(ask, 2)


def test_a_closure_that_drags_much_along_is_named():
    ballast = torch.zeros(30_000_000)
    with pytest.warns(UserWarning, match=r"120 MB travel.* the enclosing variable 'ballast'"):
        assert launch(lambda: ballast.numel(), 2)[1] == 30_000_000
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        launch(lambda: 1, 2)


def test_large_results_need_no_room_in_dev_shm(monkeypatch):
    """A container's /dev/shm holds 64 MB. Nothing of ours is put there, large or small."""

    def names():
        before = set(os.listdir("/dev/shm"))
        return before

    if not os.path.isdir("/dev/shm"):
        pytest.skip("no /dev/shm on this system")
    before = names()
    seen = []
    run = launch(lambda: torch.zeros(30_000_000), 2, on_message=lambda *_: seen.append(names()))
    assert run[1].nbytes == 120_000_000
    assert names() <= before


def test_a_file_on_disk_serves_where_there_is_no_memory_file(monkeypatch):
    from dtcourse.launch import serialization

    monkeypatch.delattr(os, "memfd_create", raising=False)
    payload = serialization.Payload(serialization.serialize(torch.arange(1_000_000)))
    assert payload.file is not None and os.fstat(payload.file).st_nlink == 0, (
        "it has no name to be left behind"
    )
    payload.close()


def test_processes_that_a_rank_started_end_with_it():
    def start_one():
        return subprocess.Popen(["sleep", "300"]).pid

    pid = launch(start_one, 1)[0]
    deadline = time.monotonic() + 60
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the sleeping child outlived its rank"
        time.sleep(0.05)


def test_a_rank_may_use_data_loader_workers():
    def load():
        data = torch.utils.data.DataLoader(list(range(8)), batch_size=2, num_workers=1)
        return [batch.tolist() for batch in data]

    assert launch(load, 2)[1] == [[0, 1], [2, 3], [4, 5], [6, 7]]


SLEEPER = """
    import time, sys
    from dtcourse import launch
    from dtcourse.launch import send_message

    def sleep():
        send_message("up")
        time.sleep(300)

    launch(sleep, 3, timeout=None, on_message=lambda rank, _: print("up", rank, flush=True))
"""


def start_sleeper():
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SLEEPER)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    for _ in range(3):
        assert process.stdout.readline().startswith("up")
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 4, "a server and three ranks"
    return process, family


def gone_within(processes, seconds):
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []


def test_an_interrupt_from_the_keyboard_ends_all_ranks():
    process, family = start_sleeper()
    os.killpg(process.pid, signal.SIGINT)  # what a terminal and Jupyter send
    _, errors = process.communicate(timeout=120)
    assert "KeyboardInterrupt" in errors and "rank 2 was in sleep()" in errors
    assert gone_within(family, 60)


@pytest.mark.parametrize(
    "with_signal", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=LONG_PLAY)]
)
def test_when_the_notebook_is_killed_its_ranks_and_server_go_too(with_signal):
    process, family = start_sleeper()
    process.send_signal(with_signal)
    process.communicate(timeout=120)
    assert gone_within(family, 60)


@pytest.mark.slow
@pytest.mark.parametrize(
    "launches",
    [
        60,
        pytest.param(300, marks=LONG_PLAY),
        pytest.param(
            1000,
            marks=(
                pytest.mark.stands_on("dtcourse/launch/", share=(1, 4)),
                pytest.mark.timeout(900),
            ),
        ),
    ],
)
def test_many_launches_leave_nothing_behind(launches):
    def small():
        return dist.get_rank()

    me = psutil.Process()

    def holds():
        settle(2)  # a spare that is still being made would be open files, and a process, more
        return me.num_fds(), me.num_threads(), me.memory_info().rss

    def busy():
        return [c for c in me.children(recursive=True) if c.pid not in standby.pids()]

    for _ in range(20):
        launch(small, 2)
    before, others = holds(), busy()
    for _ in range(launches):
        launch(small, 2)
    after = holds()
    assert after[0] <= before[0] + 2, f"open files grew from {before[0]} to {after[0]}"
    assert after[1] <= before[1] + 1, f"threads grew from {before[1]} to {after[1]}"
    assert after[2] <= before[2] + 20_000_000, (
        f"memory grew by {(after[2] - before[2]) / 1e6:.0f} MB"
    )
    left = [child for child in busy() if child not in others]
    assert gone_within(left, 60), f"{left} are left"


def test_an_end_that_is_told_late_spoils_no_result(monkeypatch):
    """On a machine with hundreds of busy processes the template may say seconds later that a killed rank is gone."""
    late = []

    def close(process):
        late.append(process.pid)
        raise ValueError("Cannot close a process while it is still running.")

    monkeypatch.setattr(RankProcess, "close", close)
    assert list(launch(dist.get_rank, 2)) == [0, 1]
    assert len(late) == 2
