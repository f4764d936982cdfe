"""Communication hides behind backward: seen in the order of events, and in time on an emulated network."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from dtcourse import emulation, launch
from dtcourse.data_parallel import DistributedDataParallel, average_gradients, broadcast_model
from dtcourse.emulation import EmulatedNetwork
from tests.emulation.slow import slow_layers

LAYERS, WIDTH = 8, 256  # 8 layers of 256 KiB of gradients each
BACKWARD = 0.20  # seconds


def steps(overlapped, count=4):
    """Emulated seconds of each step."""
    model = slow_layers(LAYERS, WIDTH, BACKWARD)
    if overlapped:
        model = DistributedDataParallel(model, bucket_cap_mb=0.25)  # a layer a bucket
    else:
        broadcast_model(model)
    times = []
    for _ in range(count):
        dist.barrier()
        start = emulation.now()
        model(torch.ones(1, WIDTH)).sum().backward()
        if not overlapped:
            average_gradients(model)
        times.append(emulation.now() - start)
        for p in model.parameters():
            p.grad = None
    return times


def network(ranks):
    """Links on which the all-reduce of all gradients takes as long as backward."""
    nbytes = LAYERS * WIDTH * WIDTH * 4
    return EmulatedNetwork(latency=0.0, bandwidth=2 * (ranks - 1) / ranks * nbytes / BACKWARD)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("backend", ["ring", "gloo"])
def test_a_step_takes_the_longer_of_compute_and_communication_not_their_sum(backend, ranks):
    emulated = {"backend": backend, "network": network(ranks), "clock": "virtual"}
    for together in launch(steps, ranks, True, **emulated):
        # The last bucket is ready when backward ends, so its transfer, 1/8 of them all, cannot hide.
        # In the second step buckets are built again, by rank 0's word.
        assert together[2:] == pytest.approx([BACKWARD * (1 + 1 / LAYERS)] * 2)
    for one_after_the_other in launch(steps, ranks, False, **emulated):
        assert one_after_the_other == pytest.approx([2 * BACKWARD] * 4)


def test_buckets_leave_while_backward_still_computes():
    """The order of events: most buckets start before the last layer's backward ends."""
    emulated = {"network": network(2), "clock": "virtual"}
    run = launch(steps, 2, True, 3, backend="gloo", record=True, **emulated)
    for rank in range(2):
        timeline = run.timeline.of(rank=rank)
        last_compute = max(e.end for e in timeline if e.kind == "compute")
        last_step = [e for e in timeline if e.kind == "compute"][-LAYERS:]
        sent = [
            e for e in timeline
            if e.kind == "communication" and "all_reduce" in e.name and last_step[0].start < e.start < last_compute
        ]  # fmt: skip
        assert len(sent) >= LAYERS - 2
