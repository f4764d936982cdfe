"""What is planted as hidden and as exposed is found, exactly: by hand, on the virtual clock, in a profile."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from dtcourse import emulation, events, launch
from dtcourse.emulation import EmulatedNetwork
from dtcourse.events import Event, Timeline
from dtcourse.profiling.communication import communication_of, step_by_step

NETWORK = EmulatedNetwork(latency=1.0, bandwidth=4.0, gap=0.5)
REDUCED = 2 * (1 + 0.5 + 8 / 4)  # seconds of a ring all-reduce of 16 bytes on two ranks


def overlapped():
    """An all-reduce of 7 s beside 3 s of work, then one alone, then one behind 10 s of work."""
    for beside in (3.0, None, 10.0):
        with events.span("step", "step"):
            work = dist.all_reduce(torch.ones(4), async_op=beside is not None)
            if beside is not None:
                emulation.sleep(beside)
                work.wait()


@pytest.mark.parametrize("backend", ["ring", "gloo"])
def test_on_the_virtual_clock_hidden_and_exposed_are_exact(backend):
    where = {"network": NETWORK, "clock": "virtual", "device": "cpu"}
    run = launch(overlapped, 2, backend=backend, record=True, **where)
    for rank in (0, 1):
        steps = step_by_step(run.timeline, rank)
        assert [step.busy for step in steps] == pytest.approx([REDUCED] * 3)
        assert [step.hidden for step in steps] == pytest.approx([3.0, 0.0, REDUCED])
        assert [step.exposed_share for step in steps] == pytest.approx([4 / 7, 1, 0])
        whole = communication_of(run.timeline, rank)
        assert whole.exposed == pytest.approx(4 + 7 + 0)
        assert whole.exposed == pytest.approx(run.accounts[rank].waited)


def test_two_at_once_count_once_and_each_for_itself():
    timeline = Timeline([
        Event("all_reduce", "communication", 0, 0, 6, lane="a"),
        Event("all_gather", "communication", 0, 4, 8, lane="b"),
        Event("wait for all_gather", "wait", 0, 5, 8),
        Event("other rank", "wait", 1, 0, 8),
    ])  # fmt: skip
    found = communication_of(timeline, 0)
    assert (found.busy, found.exposed, found.hidden) == (8, 3, 5)
    assert found.by_name == {"all_reduce": (6, 1), "all_gather": (4, 3)}
    part = communication_of(timeline, 0, (5, 7))
    assert (part.span, part.busy, part.exposed, part.hidden_share) == (2, 2, 2, 0)
    assert str(found).startswith("rank 0: 8000.000 ms of communication in 8000.000 ms, 5000.000 ms")


def profiled():
    from dtcourse.profiling import kernels

    x, a = torch.ones(1 << 18), torch.ones(256, 256)
    dist.all_reduce(x)
    with torch.profiler.profile() as profiler:
        time.sleep(0.2 * dist.get_rank())  # rank 1 comes late, so rank 0 has long to compute in
        work = dist.all_reduce(x, async_op=True)
        while not work.is_completed():
            a @ a
        work.wait()
        dist.all_reduce(x)
    return kernels.timeline_of(profiler)


def blocked():
    from dtcourse.collectives import ring

    dist.all_reduce(torch.ones(8))
    ring.all_reduce(torch.ones(8))


def test_on_the_machines_own_clock_a_blocking_collective_is_exposed():
    """No wait() follows it, so there is no event of one."""
    timeline = launch(blocked, 2, backend="gloo", device="cpu", record=True).timeline
    found = communication_of(timeline, 1)
    (busy, exposed) = found.by_name["all_reduce"]
    assert exposed == pytest.approx(busy) and busy > 0


def test_in_a_profile_what_runs_beside_products_is_hidden():
    """The first all-reduce is computed beside until it is done, the second one is waited for."""
    timeline = launch(profiled, 2, backend="gloo", device="cpu")[0]
    first, second = [e for e in timeline if e.name == "gloo:all_reduce"]
    beside = communication_of(timeline, 0, (first.start, first.end))
    alone = communication_of(timeline, 0, (second.start, second.end))
    assert beside.hidden > 0 and alone.hidden == 0
    assert alone.exposed == pytest.approx(second.seconds)
    assert communication_of(timeline, 0).exposed == timeline.exposed(0)


def test_what_cannot_be_said_is_refused():
    timeline = Timeline([Event("all_reduce", "communication", 2, 0, 6)])
    with pytest.raises(
        ValueError, match=r"rank 0 has no events in this timeline; its ranks are \[2\]"
    ):
        communication_of(timeline, 0)
    with pytest.raises(ValueError, match="got 3 to 2"):
        communication_of(timeline, 2, (3, 2))
    with pytest.raises(ValueError, match="rank 2 has recorded no steps"):
        step_by_step(timeline, 2)
    nothing = communication_of(timeline, 2, (7, 8))
    assert (nothing.busy, nothing.hidden_share, nothing.exposed_share) == (0, 1, 0)
