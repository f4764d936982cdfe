"""The flight recorder itself: what it keeps, when it writes, and that nothing is left of it. Hangs: tests/debugging."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.collectives import flight
from dtcourse.collectives.flight import recorder
from dtcourse.collectives.flight.record import file_of


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def as_it_is():
    methods = {name: vars(dist.ProcessGroup)[name] for name in ("allreduce", "send", "barrier")}
    return (
        methods,
        vars(dist.Work)["wait"],
        signal.getsignal(signal.SIGUSR1),
        os.listdir("/proc/self/fd"),
    )


def step(folder):
    before = as_it_is()
    flight.start(folder, capacity=3)
    work = dist.all_reduce(torch.ones(5), async_op=True)
    for _ in range(4):
        dist.all_reduce(torch.ones(2, 3))
    dist.broadcast(torch.ones(7, dtype=torch.float64), src=0)
    file = file_of(folder, 0)
    os.kill(os.getpid(), signal.SIGUSR1)
    limit = time.monotonic() + 60
    while not file.exists() and time.monotonic() < limit:
        time.sleep(0.01)
    asked = read(file)
    flight.leave("returned")
    kept = read(file)[0]["left"]
    dist.barrier()
    flight.leave("returned")
    flight.stop()
    dist.all_reduce(torch.ones(1))  # unseen, and it works
    work.wait()
    return asked, kept, before[:3] == as_it_is()[:3], len(os.listdir("/proc/self/fd")), before[3]


def test_the_ring_keeps_the_last_and_sigusr1_writes_them(tmp_path):
    (header, *calls), kept, is_restored, files, before = launch(step, 1, tmp_path)[0]
    assert header["reason"] == "SIGUSR1" and header["calls"] == 6 and header["entries"] == 3
    assert header["collectives"] == {"the default group": 6}, "also those that the ring has lost"
    assert [call["seq"] for call in calls] == [6, 5, 4], "the newest first"
    first = calls[0]
    assert (first["operation"], first["sizes"], first["dtype"]) == ("broadcast", [[7]], "float64")
    assert first["detail"] == {"root": 0} and first["state"] == "finished" and first["waits"] == 1
    file, _, function, text = first["lines"][0]
    assert file == __file__ and function == "step" and text.startswith("dist.broadcast(")
    assert kept == "", "what was written in a hang is not overwritten by what came of it"
    assert is_restored and files == len(before), "methods, handler and files are as before"


@pytest.mark.parametrize("wrong", [{"capacity": 0}, {"hang_after": 0}, {"capacity": "many"}])
def test_what_cannot_be(wrong, tmp_path):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} is"):
        flight.start(tmp_path, **wrong)
    assert not flight.running()


def many(folder):
    flight.start(folder)
    for _ in range(4000):
        dist.all_reduce(torch.ones(4))
    dist.all_to_all_single(torch.ones(2), torch.ones(2))
    calls = recorder.of_process().count
    flight.stop()
    return calls


def test_posting_does_not_hold_python_s_lock(tmp_path):
    """gloo's thread takes it to free what it has done, under a lock that posting takes: with both held, a hang.

    A kernel called by SafeKernelFunction.call_boxed held it: 5 of 5 runs hung within 5,000 calls.
    """
    assert launch(many, 1, tmp_path, timeout=120)[0] == 4001
