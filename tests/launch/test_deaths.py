"""on_failure="continue": who waits for a rank that has died is told which, also where gloo has not noticed."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist

from dtcourse import launch

WAITS = {
    "all_reduce": lambda g: dist.all_reduce(torch.ones(4), group=g),
    "async": lambda g: dist.all_reduce(torch.ones(4), group=g, async_op=True).wait(),
    "recv": lambda g: dist.recv(torch.ones(4), 1, group=g),
    "barrier": lambda g: dist.barrier(g),
}


def dies(hidden):
    """hidden: a child keeps its connections open, so that no peer sees them close."""
    if hidden and os.fork() == 0:
        time.sleep(600)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


def waits_for_the_dead(hidden):
    """Each wait on a group of its own."""
    groups = {name: dist.new_group() for name in WAITS}
    pair = dist.new_group([0, 2])
    for group in groups.values():
        dist.barrier(group)
    if dist.get_rank() == 1:
        dies(hidden)
    said = {}
    for name, group in groups.items():
        try:
            WAITS[name](group)
        except RuntimeError as error:
            said[name] = f"{type(error).__name__}: {error}"
    if dist.get_rank() == 2:
        time.sleep(2.5)  # a straggler is nobody's death
    x = torch.ones(1)
    dist.all_reduce(x, group=pair)
    return said, x.item()


@pytest.mark.parametrize(
    ("backend", "hidden"),
    [
        ("gloo", True),
        ("ring", True),
        pytest.param("gloo", False, marks=pytest.mark.stands_on("dtcourse/launch/")),
    ],
)
def test_who_waits_for_a_dead_rank_hears_which(backend, hidden):
    run = launch(waits_for_the_dead, 3, hidden, backend=backend, on_failure="continue", timeout=100)
    assert "was killed by SIGKILL" in str(run[1])
    for rank in (0, 2):
        said, total = run[rank]
        assert total == 2.0, "a group without the dead goes on, however slow"
        for name in WAITS:
            assert said[name].startswith("PeerFailure: "), said[name]
            assert "rank 1" in said[name] and "killed by SIGKILL" in said[name], said[name]


def steps_of_ddp():
    """The wait is C++'s own, for a collective that C++ has posted: the error is torch's, and a line names the rank."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    for step in range(2):
        if step == 1 and dist.get_rank() == 1:
            dies(hidden=True)
        try:
            model(torch.ones(1, 2)).sum().backward()
        except RuntimeError as error:
            return str(error)
    return "nothing"


def test_a_backward_of_pytorch_s_ddp_ends_too():
    run = launch(steps_of_ddp, 2, on_failure="continue", timeout=100)
    assert "closure" in run[0] or "onnection" in run[0], run[0]
    assert any("rank 1 was killed by SIGKILL" in line for line in run.output[0])


def is_watched():
    names = [thread.name for thread in threading.enumerate()]
    return "dtcourse-lost-peers" in names, hasattr(dist.Work.wait, "__wrapped__")


def test_launches_that_stop_at_a_failure_are_not_touched():
    assert launch(is_watched, 1)[0] == (False, False)
    assert launch(is_watched, 1, on_failure="continue")[0] == (True, True)
