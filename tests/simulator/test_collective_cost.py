"""The model against its sources, against counted traffic, and against an emulated network."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path

import pytest

from dtcourse import launch
from dtcourse.emulation import EmulatedNetwork
from dtcourse.profiling import collective_bench as bench
from dtcourse.simulator import collective_cost as cost
from dtcourse.simulator.collective_cost import (
    Link,
    Terms,
    bus_bandwidth,
    crossover,
    fit,
    seconds,
    terms,
)


@pytest.mark.parametrize("p", [2, 4, 8])
def test_the_published_formulas(p):
    """shared/published/collectives_cost_models.json, its power-of-two rows, copied as formulas."""
    n, lg, share = 1e6, math.log2(p), (p - 1) / p
    assert terms("ring", "all_reduce", n, p) == Terms(2 * (p - 1), 2 * n * share, n * share)
    assert terms("ring", "reduce_scatter", n, p) == Terms(p - 1, n * share, n * share)
    assert terms("ring", "all_gather", n, p) == Terms(p - 1, n * share)
    assert terms("halving_doubling", "all_reduce", n, p) == Terms(2 * lg, 2 * n * share, n * share)
    assert terms("halving_doubling", "reduce_scatter", n, p) == Terms(lg, n * share, n * share)
    assert terms("tree", "broadcast", n, p) == Terms(lg, n * lg)
    assert terms("tree", "reduce", n, p) == Terms(lg, n * lg, n * lg)
    assert terms("tree", "all_reduce", n, p) == Terms(2 * lg, 2 * n * lg, n * lg)


def test_bus_factors_are_those_of_nccl_tests():
    published = Path(__file__).parents[3] / "shared/published/collectives_cost_models.json"
    if not published.exists():
        pytest.skip("shared/published is not beside this checkout")
    factors = json.loads(published.read_text())["busbw_factors"]
    for name, formula in factors.items():
        ours = {"alltoall": "all_to_all"}.get(name, name)
        if ours not in cost.BUS_FACTORS:
            continue
        for n in (2, 3, 8):
            text = str(formula).replace("2(n", "2*(n")
            assert cost.BUS_FACTORS[ours](n) == pytest.approx(eval(text, {"n": n}))


@pytest.mark.parametrize(
    ("algorithm", "collective"),
    [
        ("ring", "all_reduce"),
        ("ring", "reduce_scatter"),
        ("ring", "all_gather"),
        ("halving_doubling", "all_reduce"),
    ],
)
@pytest.mark.parametrize("p", [2, 4, 8])
def test_bytes_of_the_critical_path_are_what_each_rank_sends(algorithm, collective, p):
    """Where all ports are always busy, the model's bytes are the algorithm's own count."""
    module = importlib.import_module(f"dtcourse.collectives.{algorithm}")
    elements = 64 * p
    sent = getattr(module, f"{collective}_sent")(elements, p, 0)
    assert terms(algorithm, collective, elements * 4, p).bytes == sent.elements * 4
    assert terms(algorithm, collective, elements * 4, p).latencies == sent.messages


def test_one_rank_costs_nothing():
    assert all(terms(a, "all_reduce", 1e6, 1) == Terms() for a in ("naive", "ring", "tree"))


def test_crossover_of_tree_and_ring():
    link = Link(alpha=1e-3, beta=1e-8)
    size = crossover("tree", "ring", "all_reduce", 8, link)
    # 6 a + 6 n b = 14 a + 14/8 n b
    assert size == pytest.approx(8e-3 / (4.25e-8), rel=1e-6)
    assert crossover("naive", "tree", "all_reduce", 2, link) is None


def test_fit_finds_what_the_numbers_were_made_from():
    sizes = [2**k for k in range(10, 25)]
    times = [50e-6 + s * 2e-9 for s in sizes]
    link = fit(sizes, times)
    assert link.alpha == pytest.approx(50e-6, rel=1e-3) and link.bandwidth == pytest.approx(
        5e8, rel=1e-3
    )
    assert fit([1e6, 2e6, 4e6], [1.0, 2.0, 4.0]).alpha == pytest.approx(0, abs=1e-9)
    with pytest.raises(ValueError, match="two sizes or more"):
        fit([8, 8], [1.0, 1.0])


def test_bus_bandwidth_of_a_perfect_ring_is_the_links_own():
    link = Link(0.0, 1e-9)
    for p in (2, 4, 8):
        t = terms("ring", "all_reduce", 1e8, p).seconds(link)
        assert bus_bandwidth("all_reduce", 1e8, t, p) == pytest.approx(1e9)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: terms("carrier", "all_reduce", 1, 2), "no model of 'carrier'"),
        (lambda: terms("ring", "all_to_all", 1, 2), "ring has no all_to_all"),
        (lambda: terms("ring", "all_at_once", 1, 2), "no collective 'all_at_once'"),
        (lambda: terms("ring", "all_reduce", 1, 0), "ranks are 1 or more"),
        (lambda: bus_bandwidth("barrier", 1, 1, 2), "no bus bandwidth is defined for barrier"),
    ],
)
def test_what_there_is_no_model_of(call, says):
    with pytest.raises(ValueError, match=says):
        call()


def test_the_fit_finds_an_emulated_networks_own_numbers():
    slow = EmulatedNetwork(latency=20e-3, bandwidth=10e6)
    sizes = [1 << 10, 1 << 14, 1 << 18, 1 << 20]
    pairs = launch(bench.ping_pong, 2, sizes, 3, 1, backend="ring", network=slow, clock="virtual")[
        0
    ]
    link = fit(*zip(*pairs, strict=True))
    assert link.alpha == pytest.approx(slow.latency, rel=1e-6)
    assert link.bandwidth == pytest.approx(slow.bandwidth, rel=1e-6)


def test_the_gap_makes_the_root_pay_and_gives_a_best_chunk():
    free, paid = Link(1e-5, 1e-9), Link(1e-5, 1e-9, gap=1e-5)
    root = [
        seconds("naive", "all_reduce", 8, p, paid) - seconds("naive", "all_reduce", 8, p, free)
        for p in (2, 8)
    ]
    assert root == pytest.approx([2 * 1e-5, 14 * 1e-5])  # 2 (p - 1) messages at one port
    chunks = [1 << k for k in range(10, 24)]
    times = [seconds("ring", "all_reduce", 1 << 24, 8, paid, chunk) for chunk in chunks]
    best = chunks[times.index(min(times))]
    assert chunks[0] < best < chunks[-1]
    without = [seconds("ring", "all_reduce", 1 << 24, 8, free, chunk) for chunk in chunks]
    assert min(without) == without[0]  # a message that costs nothing is never too small


@pytest.mark.parametrize("backend", [None, "ring"])
def test_the_benchmark_runs_every_collective(backend):
    def all_of_them():
        return {
            c: bench.sweep(c, [1 << 10, 1 << 14], repeats=2, warmup=1) for c in bench.COLLECTIVES
        }

    for rows in launch(all_of_them, 3, backend=backend)[0].values():
        assert [r["bytes"] for r in rows] == [1020, 16380]
        assert all(0 < r["fastest"] <= r["seconds"] <= r["slowest"] for r in rows)
