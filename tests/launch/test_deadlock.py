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
from tests import at_once

LIMIT = 250.0

pytestmark = pytest.mark.skipif(
    not os.path.isdir("/proc/self/task"), reason="needs /proc: there the system tells of threads"
)


def early(function, ranks=2, *args, **options):
    with deadlock.found_early():
        return launch(function, ranks, *args, timeout=LIMIT, **options)


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
def test_a_deadlock_is_found_before_its_limit(backend):
    """Each in a launch of its own, side by side: to find one takes seconds in which nobody computes."""
    functions = [
        receives_first,
        receives_first_by_ours,
        waits_for_a_work,
        leaves_a_barrier_out,
        leaves_a_collective_out,
        leaves_an_asynchronous_one_out,
        leaves_an_object_out,
        is_stuck_in_backward,
    ]

    def seconds_and_error(function):
        start = time.monotonic()
        try:
            early(function, 3, backend=backend)
        except RankTimeout as error:
            return time.monotonic() - start, error

    found = at_once.outcomes({f.__name__: lambda f=f: seconds_and_error(f) for f in functions})
    for name, outcome in found.items():
        assert isinstance(outcome, tuple), f"{name}: {outcome}"
        seconds, error = outcome
        assert seconds < LIMIT / 2, name
        assert "had returned" in error.waiting[0] or "wait" in str(error), name


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

    found, ended = at_once.returned(
        [
            lambda: said(lambda: early(receives_first)),
            lambda: said(lambda: launch(receives_first, 2, timeout=1)),
        ]
    )
    assert found == ended


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
def test_ranks_that_wait_for_one_that_does_something_are_left_alone():
    """Each doing on both backends, in launches of their own, side by side."""
    doings = [
        sleeps,
        waits_for_a_moment,
        waits_for_another_program,
        waits_for_a_thread,
        looks_again_and_again,
    ]

    def step(doing, one):
        if dist.get_rank() == one:
            doing()
        dist.barrier()
        return "done"

    cases = {
        f"{doing.__name__}, {backend}": (doing, index % 2, backend)
        for index, doing in enumerate(doings)
        for backend in ("gloo", "ring")
    }
    found = at_once.outcomes(
        {
            name: lambda doing=doing, one=one, backend=backend: list(
                early(step, 2, doing, one, backend=backend)
            )
            for name, (doing, one, backend) in cases.items()
        }
    )
    assert list(found.values()) == [["done", "done"]] * len(cases), found


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
def test_an_emulated_network_may_be_slow():
    def step(asynchronous):
        x = torch.ones(4)
        work = dist.all_reduce(x, async_op=asynchronous)
        if asynchronous:
            work.wait()
        return x.tolist()

    network = EmulatedNetwork(latency=LONG / 2)
    found = at_once.outcomes(
        {
            f"{backend}, {asynchronous}": lambda backend=backend, asynchronous=asynchronous: list(
                early(step, 2, asynchronous, backend=backend, network=network)
            )
            for backend in ("gloo", "ring")
            for asynchronous in (False, True)
        }
    )
    assert list(found.values()) == [[[2.0] * 4] * 2] * 4, found
