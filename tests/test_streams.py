"""Moments and a second stream: on a CPU the clock of events and nothing; on a GPU what its streams do."""

from __future__ import annotations

import pytest
import torch

from dtcourse import device, events
from dtcourse.streams import Moment, SecondStream

CPU = torch.device("cpu")


def test_a_moment_on_a_cpu_is_one_of_the_clock_of_events(monkeypatch):
    times = iter([10.0, 12.5])
    monkeypatch.setattr(events, "_clock", lambda: next(times))
    first, second = Moment(CPU), Moment(CPU)
    assert second.seconds_since(first) == 2.5
    assert second.on_host(first) == 12.5


def test_on_a_cpu_the_second_stream_is_the_thread_s_own():
    with SecondStream(CPU).after(Moment(CPU)):
        x = torch.ones(2) + 1
    assert x.tolist() == [2.0, 2.0]


def _busy(where, number):
    x = torch.randn(4096, 4096, device=where)
    for _ in range(number):
        x = torch.tanh(x @ x)
    return x


@pytest.mark.gpu  # unverified: no GPU was at hand when this was written
def test_on_a_gpu_a_moment_comes_when_what_was_queued_before_it_is_done():
    where = torch.device("cuda", 0)
    _busy(where, 2)
    device.synchronize(where)
    origin = Moment(where)
    begun = events.now()
    _busy(where, 100)
    queued = Moment(where)
    device.synchronize(where)
    took = events.now() - begun
    assert queued.time - origin.time < queued.seconds_since(origin) <= took
    assert queued.on_host(origin) == pytest.approx(origin.time + queued.seconds_since(origin))


@pytest.mark.gpu  # unverified, as above
def test_on_a_gpu_the_second_stream_reads_what_is_there_by_the_moment_and_waits_for_no_more():
    where = torch.device("cuda", 0)
    second = SecondStream(where)
    made = _busy(where, 50)
    handed_over = Moment(where)
    _busy(where, 500)
    still = Moment(where)
    with second.after(handed_over):
        copy = made + 0
    assert not still.event.query(), "the first stream goes on"
    assert torch.equal(copy.cpu(), made.cpu())
