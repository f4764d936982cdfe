"""On the virtual clock: priority saves what its formula says, where the wait has moved,
and nothing where it has not."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import emulation, events, launch
from dtcourse.collectives import ring
from dtcourse.communication_scheduling import (
    PriorityDataParallel,
    arrivals,
    expected_gain,
    step_seconds,
)
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.emulation import EmulatedNetwork
from tests.turns import taking_turns

LAYERS, WIDTH, STEPS = 4, 48, 4
NBYTES = WIDTH * WIDTH * 4  # of a layer's gradient


class Takes(torch.autograd.Function):
    """The identity, whose backward takes a known time."""

    @staticmethod
    def forward(context, x, seconds):
        context.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        with events.span("backward", "compute"):
            emulation.sleep(context.seconds)
        return gradient, None


class Layer(nn.Module):
    def __init__(self, forward, backward):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(WIDTH))
        self.seconds = forward, backward

    def forward(self, x):
        with events.span("forward", "compute"):
            emulation.sleep(self.seconds[0])
        return Takes.apply(x @ self.weight, self.seconds[1])


def steps(f, b, pieces, options):
    """Seconds from the begin of each backward to that of the next one, without the forward of a step of its own."""
    model = nn.Sequential(*(Layer(f, b) for _ in range(LAYERS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if options is None:
        wrapped = DistributedDataParallel(model, bucket_cap_mb=NBYTES / (1 << 20))
    else:
        slice_bytes = NBYTES // pieces
        wrapped = PriorityDataParallel(model, optimizer, slice_bytes=slice_bytes, **options)
    begins = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = wrapped(torch.ones(1, WIDTH)).sum()
        begins.append(emulation.now())
        loss.backward()
        optimizer.step()
    wrapped(torch.ones(1, WIDTH))
    begins.append(emulation.now())
    planned = getattr(wrapped, "planned", None)
    return [after - before for before, after in pairwise(begins)], planned


WAYS = {
    "DDP": None,
    "FIFO, wait in backward": {"credit_bytes": math.inf, "wait_in": "backward"},
    "priority, wait in backward": {"wait_in": "backward"},
    "FIFO, wait in forward": {"credit_bytes": math.inf},
    "priority, wait in forward": {},
}
# forward, backward and communication of a layer, in seconds; slices of half a second
TIMES = [(1.0, 1.0, 2.0), (0.5, 1.0, 2.0), (2.0, 1.0, 1.5), (1.0, 2.0, 1.0)]


@pytest.mark.parametrize("backend", ["ring", "gloo"])
@pytest.mark.parametrize(("f", "b", "c"), TIMES)
def test_priority_saves_what_the_formula_says_only_where_the_wait_is_in_forward(backend, f, b, c):
    p = 4 if (f, backend) == (1.0, "ring") else 2
    pieces = round(c / 0.5)
    link = EmulatedNetwork(latency=0.0, bandwidth=2 * (p - 1) / p * NBYTES / c)
    run = launch(every_way, p, f, b, pieces, backend=backend, network=link, clock="virtual")
    fifo = LAYERS * b + c + LAYERS * f + (LAYERS - 1) * max(0.0, c - b)
    for found in run:
        for way, (times, planned) in found.items():
            gain = expected_gain(LAYERS, f, b, c) if way == "priority, wait in forward" else 0.0
            # The first two are before the plan: recorded, then synchronised and timed.
            assert times[2:] == pytest.approx([fifo - gain] * (STEPS - 2), rel=1e-9), way
            if planned and "wait in forward" in way:  # and it was known before it ran
                there = arrivals(planned, range(len(planned)))
                # bucket 0 is the last layer's
                arrived = [there[LAYERS - 1 - i] for i in range(LAYERS)]
                told = step_seconds(arrived, [f] * LAYERS, LAYERS * b)
                assert told == pytest.approx(fifo - gain, rel=1e-9), way
    if (f, backend) == (2.0, "ring"):
        again = launch(every_way, p, f, b, pieces, backend=backend, network=link, clock="virtual")
        assert list(again) == list(run), "the same to the last digit, whatever the machine does"


def every_way(f, b, pieces):
    return {way: steps(f, b, pieces, options) for way, options in WAYS.items()}


def a_straggler():
    """Rank 1 has layers that take longer in another order: all ranks still call the same collectives."""
    slow = dist.get_rank() == 1
    model = nn.Sequential(*(Layer(1.0, 0.5 + slow * i) for i in range(LAYERS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    wrapped = PriorityDataParallel(model, optimizer, slice_bytes=NBYTES // 3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        wrapped(torch.ones(1, WIDTH)).sum().backward()
        optimizer.step()
    wrapped.synchronize()
    return wrapped.planned, [p.detach().clone() for p in model.parameters()]


def test_ranks_of_different_speed_agree_on_one_plan():
    link = EmulatedNetwork(bandwidth=NBYTES / 2)
    run = launch(a_straggler, 3, backend="ring", network=link, clock="virtual")
    for plan, weights in run:
        assert plan == run[0][0]
        assert all(torch.equal(a, b) for a, b in zip(weights, run[0][1], strict=True))


def one_recorded(seconds=1.0):
    return steps(seconds, seconds, 4, {})[1]


def test_events_show_the_first_layer_overtaking_and_forward_running_beside_the_rest():
    p, pieces = 2, 4
    link = EmulatedNetwork(bandwidth=NBYTES / 2.0)  # c = 2
    run = launch(one_recorded, p, backend="ring", network=link, clock="virtual", record=True)
    for rank in range(p):
        timeline = run.timeline.of(rank=rank)
        computed = [e for e in timeline if e.kind == "compute"]
        sent = [e for e in timeline if e.name == "all_reduce" and e.lane == "collectives"]
        # the last whole step: its backward, and the forward after it
        backward = [e for e in computed if e.name == "backward"][-LAYERS:]
        forward = [e for e in computed if e.name == "forward"][-LAYERS:]
        slices = [e for e in sent if e.start >= backward[0].end]
        assert len(slices) == LAYERS * pieces
        planned = [s.layer for s in run[rank]]
        assert planned[:4] == [0, 0, 1, 1], "each layer is overtaken by the one before it"
        # The first layer's gradient is ready when backward ends: nothing else travels until it has arrived.
        first = [e for e, layer in zip(slices, planned, strict=True) if layer == LAYERS - 1]
        assert first[0].start == pytest.approx(backward[-1].end)
        assert forward[0].start == pytest.approx(first[-1].end)
        beside = [e for e in slices if e.start >= forward[0].start]
        assert len(beside) == (LAYERS - 1) * (pieces - 2)


@pytest.mark.parametrize("p", [3, *taking_turns(2, about="dtcourse/communication_scheduling/")])
def test_a_rank_sends_the_gradients_once_in_slices(p):
    run = launch(one_recorded, p, 0.0, backend="ring", record=True)  # nothing is emulated
    elements = WIDTH * WIDTH // 4
    for rank in range(p):
        once = ring.all_reduce_volume(elements, p, rank)
        sent = run.traffic.bytes_sent(rank=rank, operation="all_reduce", phase="backward")
        assert sent == STEPS * LAYERS * 4 * once.elements * 4
        messages = run.traffic.messages_sent(rank=rank, operation="all_reduce", phase="backward")
        assert messages == STEPS * LAYERS * 4 * once.messages
