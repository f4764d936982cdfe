"""Communication hides behind backward: seen in the order of events, and felt in time under a slow network."""

from __future__ import annotations

import statistics
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import events, launch
from dtcourse.collectives.network import EmulatedNetwork
from dtcourse.data_parallel import DistributedDataParallel, average_gradients, broadcast_model

LAYERS, WIDTH = 8, 256  # 8 layers of 256 KiB of gradients each
BACKWARD = 0.20  # seconds, spent waiting and not computing, so that two cores suffice for any number of ranks


class SlowBackward(torch.autograd.Function):
    """The identity, whose backward takes a known time: computation that leaves the processor to others."""

    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        with events.span("layer", "compute"):
            time.sleep(BACKWARD / LAYERS)
        return gradient


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = SlowBackward.apply(layer(x))
        return x


def steps(overlapped, count=5):
    model = Model()
    if overlapped:
        model = DistributedDataParallel(model, bucket_cap_mb=0.25)  # a layer a bucket
    else:
        broadcast_model(model)
    times = []
    for _ in range(count):
        dist.barrier()
        start = time.monotonic()
        model(torch.ones(1, WIDTH)).sum().backward()
        if not overlapped:
            average_gradients(model)
        times.append(time.monotonic() - start)
        for p in model.parameters():
            p.grad = None
    return statistics.median(times[2:])


def network(ranks):
    """Links on which the all-reduce of all gradients takes as long as backward."""
    nbytes = LAYERS * WIDTH * WIDTH * 4
    return EmulatedNetwork(latency=0.0, bandwidth=2 * (ranks - 1) / ranks * nbytes / BACKWARD)


@pytest.mark.timing
@pytest.mark.parametrize("backend", ["ring", "gloo"])
def test_a_step_takes_the_longer_of_compute_and_communication_not_their_sum(backend):
    slow = network(2)
    together = max(launch(steps, 2, True, backend=backend, network=slow))
    one_after_the_other = max(launch(steps, 2, False, backend=backend, network=slow))
    assert one_after_the_other > 1.8 * BACKWARD
    # The last bucket is ready when backward ends, so its transfer, 1/8 of them all, cannot hide.
    last_bucket = BACKWARD / LAYERS
    assert together < 1.15 * (BACKWARD + last_bucket)


def test_buckets_leave_while_backward_still_computes():
    """The order of events, on a network of any speed: most buckets start before the last layer's backward ends."""
    run = launch(steps, 2, True, 3, backend="gloo", record=True)
    for rank in range(2):
        timeline = run.timeline.of(rank=rank)
        last_compute = max(e.end for e in timeline if e.kind == "compute")
        last_step = [e for e in timeline if e.kind == "compute"][-LAYERS:]
        sent = [
            e for e in timeline
            if e.kind == "communication" and "all_reduce" in e.name and last_step[0].start < e.start < last_compute
        ]  # fmt: skip
        assert len(sent) >= LAYERS - 2
