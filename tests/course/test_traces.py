"""The traces of exercise diagnose_trace against the emulated network: the same seconds, on every route."""

from __future__ import annotations

import pytest
import torch

from dtcourse import emulation, launch
from dtcourse.collectives import halving_doubling, naive, ring, tree
from dtcourse.course.checks.lesson_04b_choosing_an_all_reduce.traces import ROUTES, Network
from dtcourse.emulation import EmulatedNetwork

ALPHA, GAP, BETA = 20e-6, 5e-6, 1e-10
SIZES = (4_096, 1 << 20)
PACKAGE = {
    "root": naive.all_reduce,
    "ring": ring.all_reduce,
    "tree": tree.all_reduce,
    "halving and doubling": halving_doubling.all_reduce,
}


def emulated(routes, sizes, late):
    import torch.distributed as dist

    taken = []
    for i, name in enumerate(routes):
        for j, n in enumerate(sizes):
            start = 1 + i * len(sizes) + j
            x = torch.ones(n // 4)
            behind = late[1] if dist.get_rank() == late[0] else 0.0
            emulation.sleep(start + behind - emulation.now())
            PACKAGE[name](x)
            taken.append(emulation.now() - start)
    return taken


@pytest.mark.parametrize("slow", [(-1, -1, 1.0), (2, 3, 3.0), (1, 0, 2.5), (0, 2, 3.0)])
@pytest.mark.parametrize("late", [(-1, 0.0), (1, 300e-6)])
def test_a_trace_takes_as_long_as_the_emulated_network(slow, late):
    ranks = 4
    cables = {}
    if slow[0] >= 0:
        k = slow[2]
        cables = {slow[:2]: EmulatedNetwork(k * ALPHA, 1 / (k * BETA), gap=k * GAP)}
    network = EmulatedNetwork(ALPHA, 1 / BETA, gap=GAP, cables=cables)
    run = launch(
        emulated, ranks, list(ROUTES), SIZES, late, backend="ring", device="cpu", network=network, clock="virtual",
    )  # fmt: skip
    right = [max(of_ranks) for of_ranks in zip(*run, strict=True)]
    here = Network(ALPHA, GAP, BETA, slow=slow, late=late)
    got = [here.seconds(name, ranks, n) for name in ROUTES for n in SIZES]
    assert got == pytest.approx(right, rel=1e-6)


def test_eight_ranks_and_a_jitter_that_stays_in_its_bounds():
    plain, shaken = Network(ALPHA, GAP, BETA), Network(ALPHA, GAP, BETA, jitter=0.02)
    for name in ROUTES:
        messages = plain.trace(name, 8, 1e6)
        assert sum(n for _, _, n, *_ in messages) == pytest.approx(14e6)
        ratio = shaken.seconds(name, 8, 1e6) / plain.seconds(name, 8, 1e6)
        assert 0.98 <= ratio <= 1.02
