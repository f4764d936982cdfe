"""Futures of collectives on the virtual clock: callbacks run at the collective's end,
whatever the machine did first."""

from __future__ import annotations

import pytest
import torch

from dtcourse import emulation
from dtcourse.collectives.wire.emulated_future import EmulatedFuture
from dtcourse.emulation import EmulatedDevice, clock
from dtcourse.emulation.clock import VirtualClock
from dtcourse.emulation.counting import CountOperations


@pytest.fixture
def virtual():
    clock.install(VirtualClock())
    yield clock.installed()
    clock.install(None)


@pytest.mark.parametrize("done_before", [False, True])
def test_a_callback_runs_at_the_collectives_end(virtual, done_before):
    seen = []

    def decompress(done):
        seen.append(emulation.now())
        return [t * 2 for t in done.value()]

    future, result = EmulatedFuture(), [torch.ones(4)]
    virtual.compute(3.0)
    with CountOperations(EmulatedDevice(bandwidth=1.0), virtual, virtual.main):
        if done_before:
            future.complete(result, None, 5.0)
        after = future.then(decompress)
        if not done_before:
            future.complete(result, None, 5.0)
    assert seen == [5.0] and virtual.main.computed == 3.0
    assert emulation.now() == 3.0  # nobody has waited yet
    assert after.wait()[0].tolist() == [2.0] * 4
    assert emulation.now() == 5.0 and virtual.main.waited == 2.0


def test_waiting_for_all_waits_for_callbacks_of_callbacks(virtual):
    future = EmulatedFuture()
    last = future.then(lambda done: done.value() + 1).then(lambda done: done.value() * 10)
    future.complete(1, None, 2.0)
    future.wait_for_all()
    assert last.done() and last.value() == 20 and emulation.now() == 2.0


def test_an_error_reaches_who_waits(virtual):
    future = EmulatedFuture()
    after = future.then(lambda done: done.value())
    future.complete(None, RuntimeError("the group failed"), 1.0)
    with pytest.raises(RuntimeError, match="the group failed"):
        future.wait()
    with pytest.raises(RuntimeError, match="the group failed"):
        after.wait()
