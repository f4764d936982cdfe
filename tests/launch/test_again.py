"""Launches that share their ranks (`standby.keeping`), and what a rank may not have been left with to be shared."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

import psutil
import pytest
import torch
import torch.distributed as dist

from dtcourse import emulation, launch
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork
from dtcourse.emulation.clock import installed
from dtcourse.launch import RankFailure, RankTimeout, leaving, reporting, standby, template
from tests import kept_ranks

pytestmark = pytest.mark.skipif(not template.POSSIBLE, reason="ranks are kept on Linux only")


@pytest.fixture(autouse=True)
def template_is_there():
    """Only ranks whose garbage collector passes over what was imported are kept: those of a template."""
    assert kept_ranks.come_from_template()
    with standby.keeping():
        yield
    assert not standby._kept


def who():
    return os.getpid()


def total():
    x = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(x)
    return os.getpid(), x.item(), dist.get_world_size()


def test_one_launch_after_another_in_the_same_processes():
    runs = [launch(total, size, record=size == 3) for size in (3, 2, 3, 1, 3)]
    assert [[(x, size) for _, x, size in run] for run in runs] == [
        [(size * (size + 1) / 2, size)] * size for size in (3, 2, 3, 1, 3)
    ]
    assert len({pid for run in runs for pid, _, _ in run}) == 3
    assert runs[0].traffic.rows == runs[2].traffic.rows == runs[4].traffic.rows != []
    assert [len(run.timeline.events) for run in runs[::2]] == [len(runs[0].timeline.events)] * 3


def test_a_larger_launch_gets_more_of_them():
    first = {pid for pid, _, _ in launch(total, 2)}
    second = {pid for pid, _, _ in launch(total, 4)}
    assert first < second and len(second) == 4


def test_outside_the_block_each_launch_has_its_own(monkeypatch):
    monkeypatch.setattr(standby, "_keeping", 0)
    assert launch(who, 1, init=False)[0] != launch(who, 1, init=False)[0]


def draw():
    import random

    import numpy as np

    return torch.rand(3).tolist(), random.gauss(0, 1), np.random.rand(), os.getpid()  # noqa: NPY002


def test_random_numbers_are_those_of_a_fresh_process():
    first, second = launch(draw, 1, init=False)[0], launch(draw, 1, init=False)[0]
    assert first == second


def notes(text):
    print(text, end="")
    return os.environ.get("OF_ONE"), os.getpid()


def test_what_it_prints_and_its_environment_are_its_own(capsys):
    one = launch(notes, 1, "half a line", init=False, env={"OF_ONE": "1"})
    two = launch(notes, 1, "another\n", init=False)
    assert (one.output, two.output) == ([["half a line"]], [["another"]])
    assert (one[0][0], two[0][0]) == ("1", None) and one[0][1] == two[0][1]


def leave(what):
    """Leaves something behind."""
    if what == "thread":
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    elif what == "child":
        subprocess.Popen(["sleep", "60"])
    elif what == "file":
        os.open("/dev/null", os.O_RDONLY)
    elif what == "another file in its place":
        os.dup2(os.open("/dev/zero", os.O_RDONLY), 0)
    elif what == "mapped file":
        with tempfile.NamedTemporaryFile() as file:
            dist.distributed_c10d.left = torch.from_file(file.name, shared=True, size=4)
    elif what == "signal handler":
        signal.signal(signal.SIGALRM, lambda *_: None)
    elif what == "timer":
        signal.setitimer(signal.ITIMER_REAL, 60)
    elif what == "trace":
        sys.settrace(lambda *_: None)
    elif what == "hook":
        torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    elif what == "type":
        torch.set_default_dtype(torch.float64)
    elif what == "no gradients":
        torch.set_grad_enabled(False)
    elif what == "saved":
        torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x).__enter__()
    elif what == "device":
        torch.set_default_device("meta")
    elif what == "collector":
        gc.callbacks.append(lambda *_: None)
    return os.getpid()


@pytest.mark.parametrize(
    "what",
    [
        *("thread", "child", "file", "another file in its place", "mapped file", "timer"),
        *(
            "signal handler",
            "trace",
            "hook",
            "type",
            "no gradients",
            "saved",
            "device",
            "collector",
        ),
    ],
)
def test_what_is_left_goes_with_its_process(what):
    left = launch(leave, 1, what, init=False)[0]
    assert launch(who, 1, init=False)[0] != left
    assert not psutil.pid_exists(left) or psutil.Process(left).status() == psutil.STATUS_ZOMBIE


def test_what_leaves_nothing_does_not():
    assert launch(leave, 1, "nothing", init=False)[0] == launch(who, 1, init=False)[0]


def fail(how):
    if dist.get_rank() == 1:
        if how == "raise":
            raise ValueError("on purpose")
        if how == "exit":
            os._exit(3)
        time.sleep(60)
    return os.getpid()


@pytest.mark.parametrize("how", ["raise", "exit", "hang"])
def test_after_a_failure_ranks_are_fresh(how):
    before = {pid for pid, _, _ in launch(total, 2)}
    with pytest.raises(RankTimeout if how == "hang" else RankFailure):
        launch(fail, 2, how, timeout=1)
    after = [one[:2] for one in launch(total, 2)]
    assert not {pid for pid, _ in after} & before
    assert [x for _, x in after] == [3.0, 3.0]


def test_one_that_died_while_it_waited_is_replaced():
    first = launch(who, 2, init=False)
    os.kill(first[0], signal.SIGKILL)
    assert first[0] not in list(launch(who, 2, init=False))


def emulated_times():
    times = [emulation.now()]
    x = torch.ones(100, 100)
    for _ in range(3):
        x = x @ x / 100
        dist.all_reduce(x)
        times.append(emulation.now())
    return os.getpid(), times


def clocks():
    return os.getpid(), emulation.now() - time.monotonic(), installed() is None


def test_ranks_of_an_emulated_cluster_stay_and_get_the_machines_clock_back():
    cluster = {"devices": EmulatedDevice(1e9, 1e9), "network": EmulatedNetwork(1e-3, 1e9)}
    first = list(launch(emulated_times, 2, **cluster))
    after = list(launch(clocks, 2))
    again = list(launch(emulated_times, 2, **cluster))
    assert again == first and first[0][1][0] == 0.0 and first[0][1][-1] > 6e-3
    assert [pid for pid, *_ in after] == [pid for pid, _ in first]
    assert all(abs(off) < 1.0 and none for _, off, none in after)


def answers_before_it_returns(then):
    say = reporting._channel.args[0]  # as one finds it who looks for it
    say("result", {"value": 42, "seconds": 0.0})
    if then == "sleeps":
        time.sleep(60)
    if then == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(0)


@pytest.mark.parametrize(
    ("then", "told"),
    [
        ("sleeps", "answered before its function had returned"),
        ("ends its process", "answered before its function had returned"),
        ("is killed", "SIGKILL"),  # by whom nobody knows: memory may be short
    ],
)
def test_an_answer_counts_only_where_the_function_has_returned(then, told, monkeypatch):
    with monkeypatch.context() as here:
        here.setattr(leaving, "PATIENCE", 2.0)
        with pytest.raises(RankFailure, match=told):
            launch(answers_before_it_returns, 1, then, init=False)
    assert launch(who, 1, init=False)[0]
