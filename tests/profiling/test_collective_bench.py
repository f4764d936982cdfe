"""The benchmark's own clock: what it says of an emulated network is what was put in."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from dtcourse import emulation, launch
from dtcourse.collectives import ring
from dtcourse.emulation import EmulatedNetwork
from dtcourse.profiling import collective_bench as bench
from dtcourse.simulator import collective_cost as cost
from tests.turns import taking_turns

NETWORK = EmulatedNetwork(latency=20e-6, bandwidth=12.5e9, gap=2e-6)
LINK = cost.Link(alpha=20e-6, beta=1 / 12.5e9, gap=2e-6)
SIZES = [1 << 10, 1 << 18, 1 << 22]


def swept(backend, ranks=4, network=NETWORK):
    where = {"backend": backend, "network": network, "clock": "virtual", "device": "cpu"}
    return launch(bench.sweep, ranks, "all_reduce", SIZES, 2, 1, **where)[0]


def started(late):
    if dist.get_rank() == late:
        emulation.sleep(0.5)
    bench.start_together()
    return emulation.now()


@pytest.mark.parametrize("ranks", [3, *taking_turns(2, 4, about="dtcourse/profiling/")])
def test_all_ranks_start_at_one_moment(ranks):
    """Also where one comes late, and where a message takes longer than what is measured."""
    for network in (NETWORK, EmulatedNetwork(latency=3.0, bandwidth=1e6)):
        where = {"backend": "ring", "network": network, "clock": "virtual", "device": "cpu"}
        moments = list(launch(started, ranks, ranks - 1, **where))
        assert len(set(moments)) == 1 and moments[0] > 0.5, moments


@pytest.mark.parametrize("ranks", [3, *taking_turns(2, 4, about="dtcourse/profiling/")])
def test_a_rings_time_is_the_formulas(ranks):
    """It was not: each rank's clock started when that rank left a barrier, up to two latencies after another one."""
    for row in swept("ring", ranks):
        right = cost.seconds("ring", "all_reduce", row["bytes"], ranks, LINK)
        assert row["seconds"] == pytest.approx(right, rel=1e-6)
        assert row["fastest"] == pytest.approx(row["slowest"])


def test_at_a_quarter_of_a_mebibyte_the_ring_is_first():
    """Times from where each rank left a barrier said the opposite."""
    names = ("naive", "tree", "ring")
    middle = {name: swept(name)[1]["seconds"] for name in names}
    for name, found in middle.items():
        assert found == pytest.approx(
            cost.seconds(name, "all_reduce", SIZES[1], 4, LINK), rel=1e-3
        ), name
    assert sorted(names, key=middle.get) == ["ring", "tree", "naive"]


def looked_at(calls):
    """How often the clock was looked at, and the collective called, in one measurement on a real machine."""
    looks, made = [], []
    right = bench.events.now

    def now():
        looks.append(right())
        return looks[-1]

    bench.events.now = now
    try:
        seconds = bench.seconds_of_one(lambda: made.append(ring.all_reduce), calls)
    finally:
        bench.events.now = right
    return len(looks), len(made), seconds, looks[1] - looks[0]


def test_on_a_real_machine_one_pair_of_looks_at_the_clock_spans_many_calls():
    """As nccl-tests does it: no two ranks' clocks are compared, and what they leave the barrier apart is divided."""
    for looks, made, seconds, span in launch(looked_at, 2, 7, backend="gloo", device="cpu"):
        assert (looks, made) == (2, 7)
        assert seconds >= span / 7 * 0.999
