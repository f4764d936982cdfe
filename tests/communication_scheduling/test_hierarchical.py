"""Reduction on two levels under emulation: where links between nodes are slow, it beats the flat ring, as predicted."""

from __future__ import annotations

import pytest
import torch

from dtcourse import emulation, launch
from dtcourse.collectives import hierarchical, ring
from dtcourse.emulation import EmulatedNetwork
from dtcourse.simulator.collective_cost import Link, hierarchical_seconds, seconds

ELEMENTS = 1200
INSIDE, BETWEEN = Link(alpha=1e-5, beta=1e-8), Link(alpha=1e-4, beta=1e-6)


def timed():
    times = []
    for reduce in (lambda x: ring.all_reduce(x), lambda x: hierarchical.all_reduce(x, node_size=2)):
        x = torch.ones(ELEMENTS)
        begun = float(int(emulation.now()) + 1)  # all begin at one moment
        emulation.sleep(begun - emulation.now())
        reduce(x)
        times.append(emulation.now() - begun)
        assert torch.equal(x, torch.full((ELEMENTS,), 4.0))
    return times


def test_two_levels_beat_the_flat_ring_where_nodes_are_far_apart():
    network = EmulatedNetwork(
        INSIDE.alpha, INSIDE.bandwidth, node_size=2, between=(BETWEEN.alpha, BETWEEN.bandwidth)
    )
    run = launch(timed, 4, backend="ring", network=network, clock="virtual")
    flat, two_levels = (max(times) for times in zip(*run, strict=True))
    predicted = hierarchical_seconds(ELEMENTS * 4, 2, 2, INSIDE, BETWEEN)
    assert two_levels == pytest.approx(predicted, rel=1e-6)
    assert flat <= seconds("ring", "all_reduce", ELEMENTS * 4, 4, BETWEEN)
    assert two_levels < 0.8 * flat
