"""Ranks that wait for each other for ever are found long before the time limit;
ranks that wait for anything else never."""

from __future__ import annotations

import linecache
import os
import subprocess
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.collectives import EmulatedNetwork, p2p
from dtcourse.launch import RankFailure, RankTimeout, deadlock

LIMIT = 250.0

pytestmark = pytest.mark.skipif(
    not os.path.isdir("/proc/self/task"), reason="needs /proc: there the system tells of threads"
)


def early(function, ranks=2, **options):
    with deadlock.found_early():
        return launch(function, ranks, timeout=LIMIT, **options)


def next_rank():
    return (dist.get_rank() + 1) % dist.get_world_size()


def receives_first():
    dist.recv(torch.zeros(4), next_rank())


def receives_first_by_ours():
    p2p.recv(torch.zeros(4), next_rank())


def waits_for_a_work():
    work = dist.irecv(torch.zeros(4), next_rank())
    work.wait()


def leaves_a_barrier_out():
    if dist.get_rank():
        dist.barrier()


def leaves_a_collective_out():
    if dist.get_rank():
        dist.all_reduce(torch.zeros(4))


def leaves_an_asynchronous_one_out():
    if dist.get_rank():
        dist.all_reduce(torch.zeros(4), async_op=True).wait()


def leaves_an_object_out():
    if dist.get_rank():
        dist.broadcast_object_list([None], src=0)


def is_stuck_in_backward():
    class Waits(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            dist.recv(torch.zeros(4), next_rank())
            return gradient

    Waits.apply(torch.ones(1, requires_grad=True)).backward()


@pytest.mark.parametrize("backend", ["gloo", "ring"])
@pytest.mark.parametrize(
    "function",
    [
        receives_first,
        receives_first_by_ours,
        waits_for_a_work,
        leaves_a_barrier_out,
        leaves_a_collective_out,
        leaves_an_asynchronous_one_out,
        leaves_an_object_out,
        is_stuck_in_backward,
    ],
    ids=lambda function: function.__name__,
)
def test_a_deadlock_is_found_before_its_limit(function, backend):
    start = time.monotonic()
    with pytest.raises(RankTimeout) as caught:
        early(function, 3, backend=backend)
    assert time.monotonic() - start < LIMIT / 2
    assert "had returned" in caught.value.waiting[0] or "wait" in str(caught.value)


def test_what_an_exercise_itself_waits_for_is_waited_for(monkeypatch):
    """Its check has ranks of its own beside the answer's, and a work's wait() has no frame in PyTorch."""
    wait = "/somewhere/dtcourse/course/checks/lesson_00_x/x.py"
    lines = ["def peer(work):\n", "    work.wait()\n", "    compute()\n"]
    monkeypatch.setitem(linecache.cache, wait, (60, None, lines, wait))
    monkeypatch.setattr(deadlock.failures, "is_library", lambda file: True)
    stack = 'Current thread 0x1:\n  File "{}", line {} in peer\n  File "/launch/rank.py", line 1 in main\n'
    assert deadlock.waits_for_a_rank(stack.format(wait, 2))
    assert not deadlock.waits_for_a_rank(stack.format(wait, 3))
    assert not deadlock.waits_for_a_rank(stack.format("/somewhere/dtcourse/models/x.py", 2))


def test_it_says_what_the_limit_would_say():
    def said(call):
        with pytest.raises(RankTimeout) as caught:
            call()
        lines = str(caught.value).split("stack of rank")[0].splitlines()
        assert lines[0].startswith("not done after ")
        return lines[1:], caught.value.waiting

    assert said(lambda: early(receives_first)) == said(lambda: launch(receives_first, 2, timeout=1))


def test_ranks_that_disagree_are_still_told_so():
    """The guard of our own collectives needs two seconds to find that out."""

    def disagree():
        dist.all_reduce(torch.zeros(4 + dist.get_rank()))

    with pytest.raises(RankFailure, match="the ranks disagree") as caught:
        early(disagree, backend="ring")
    assert not isinstance(caught.value, RankTimeout)


# --- no deadlock ----------------------------------------------------------------------------------------------------

LONG = 4.0  # seconds: longer than it takes to find a deadlock


def sleeps():
    time.sleep(LONG)


def waits_for_a_moment():
    threading.Event().wait(LONG)


def waits_for_another_program():
    subprocess.run([sys.executable, "-c", f"import time; time.sleep({LONG})"], check=True)


def waits_for_a_thread():
    thread = threading.Thread(target=time.sleep, args=(LONG,))
    thread.start()
    thread.join()


def looks_again_and_again():
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        time.sleep(0.01)


def computes():
    end = time.thread_time() + 2.0
    while time.thread_time() < end:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gloo", "ring"])
def test_ranks_that_wait_for_one_that_does_something_are_left_alone(backend):
    doings = [
        sleeps,
        waits_for_a_moment,
        waits_for_another_program,
        waits_for_a_thread,
        looks_again_and_again,
    ]

    def step():
        for index, doing in enumerate(doings):
            if dist.get_rank() == index % 2:
                doing()
            dist.barrier()
        return "done"

    assert list(early(step, 2, backend=backend)) == ["done", "done"]


@pytest.mark.slow
def test_a_rank_that_gets_little_of_a_busy_processor_is_left_alone():
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(3 * os.cpu_count())
    ]

    def step():
        if dist.get_rank() == 0:
            computes()
        dist.barrier()
        return "done"

    try:
        assert list(early(step, 3)) == ["done"] * 3
    finally:
        for process in busy:
            process.kill()
            process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("backend", ["gloo", "ring"])
def test_an_emulated_network_may_be_slow(backend, asynchronous):
    def step():
        x = torch.ones(4)
        work = dist.all_reduce(x, async_op=asynchronous)
        if asynchronous:
            work.wait()
        return x.tolist()

    network = EmulatedNetwork(latency=LONG / 2)
    assert list(early(step, 2, backend=backend, network=network)) == [[2.0] * 4] * 2
