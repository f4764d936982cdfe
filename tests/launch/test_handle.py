"""launch(..., wait=False): the launch goes on while the notebook does something else."""

from __future__ import annotations

import os
import time

import pytest
import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.launch import Cancelled, RankFailure, send_message


def step(folder, x):
    while not os.path.exists(f"{folder}/go"):
        time.sleep(0.01)
    print("from rank", dist.get_rank())
    dist.all_reduce(x)
    return x


def test_a_handle_has_what_launch_would_have_returned(tmp_path, capsys):
    x = torch.arange(300_000.0)  # large enough to be taken out of the pickle stream
    handle = launch(step, 2, str(tmp_path), x, wait=False)
    x.zero_()  # what the notebook does with it from now on is not the ranks' business
    assert not handle.done() and repr(handle) == "<launch of step, running>"
    with pytest.raises(TimeoutError, match=r"the ranks of step still run after 0\.01 s"):
        handle.result(timeout=0.01)
    while not (pids := handle.pids):
        time.sleep(0.01)
    assert len(set(pids)) == 2 and os.getpid() not in pids
    for pid in pids:
        os.kill(pid, 0)  # it is there
    (tmp_path / "go").touch()
    run = handle.result()
    assert handle.done() and repr(handle) == "<launch of step, done>" and handle.pids == ()
    torch.testing.assert_close(run[1], 2 * torch.arange(300_000.0))
    assert run.output == [["from rank 0"], ["from rank 1"]]
    assert handle.result() is run
    shown = capsys.readouterr().out
    assert shown == "rank 0 | from rank 0\nrank 1 | from rank 1\n", "once, when it was asked for"


def test_two_run_at_once(tmp_path):
    def meets(folder, own, other):
        open(f"{folder}/{own}", "w").close()
        while not os.path.exists(f"{folder}/{other}"):
            time.sleep(0.01)
        return own

    handles = [
        launch(meets, 1, str(tmp_path), own, other, wait=False)
        for own, other in (("a", "b"), ("b", "a"))
    ]
    assert [list(handle.result()) for handle in handles] == [["a"], ["b"]]


def test_what_launch_would_have_raised_is_raised_by_result(capsys):
    def fails():
        print("so far")
        raise ValueError("bad shape")

    handle = launch(fails, 1, wait=False)
    with pytest.raises(RankFailure, match="rank 0 of 1 raised ValueError: bad shape"):
        handle.result()
    assert repr(handle) == "<launch of fails, failed>"
    assert capsys.readouterr().out == "rank 0 | so far\n"
    with pytest.raises(ValueError, match="cannot be called so"):
        launch(fails, 1, 5, wait=False)


def test_a_launch_that_is_cancelled_leaves_no_rank():
    pids = []

    def waits():
        send_message(os.getpid())
        time.sleep(600)

    handle = launch(waits, 2, wait=False, on_message=lambda _, pid: pids.append(pid))
    while len(pids) < 2:
        time.sleep(0.01)
    handle.cancel()
    with pytest.raises(Cancelled, match="the launch of waits was cancelled"):
        handle.result()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    handle.cancel()  # nothing is left to do
