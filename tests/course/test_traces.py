"""The traces of exercise diagnose_trace against the emulated network: the same seconds, on every route."""

from __future__ import annotations

import random

import pytest
import torch

from dtcourse import emulation, launch
from dtcourse.collectives import halving_doubling, naive, ring, tree
from dtcourse.course.checks.lesson_04b_choosing_an_all_reduce import diagnose_trace
from dtcourse.course.checks.lesson_04b_choosing_an_all_reduce.traces import (
    ROUTES,
    Network,
    message_sizes,
)
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


def test_without_a_fault_a_trace_takes_what_the_formulas_say():
    here = Network(ALPHA, GAP, BETA)
    for p in diagnose_trace.RANKS:
        for n in (*SIZES, 1e8):
            said = diagnose_trace.seconds(here, p, p * n, list(ROUTES))
            assert {name: here.seconds(name, p, p * n) for name in said} == pytest.approx(said)
            for name in said:
                sent = {nbytes for _, _, nbytes, *_ in here.trace(name, p, p * n)}
                assert message_sizes(name, p, p * n) == sent


def test_draws_have_every_answer_and_none_that_is_always_right():
    random.seed(0)
    kinds = ("healthy", "route", "link", "late", "latency", "bandwidth")
    turns = range(diagnose_trace.EACH)
    found = {kind: [diagnose_trace.drawn(kind, turn) for turn in turns] for kind in kinds}
    for kind in kinds:
        assert {right[0] for _, right in found[kind]} == {kind}
    assert {call for _, (_, (call, _)) in found["route"]} == {0, 1}
    # Over many draws every route is once the right answer, and every rank of four once the late one.
    routes, late = set(), set()
    for _ in range(40):
        routes |= {diagnose_trace.drawn("route", turn)[1][1][1] for turn in turns}
        late |= {diagnose_trace.drawn("late", turn)[1][1] for turn in turns}
    assert routes == set(ROUTES)
    assert late >= {0, 1, 2, 3}
