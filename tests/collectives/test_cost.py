"""The model against its sources, against counted traffic, and against the clock under an emulated network."""

from __future__ import annotations

import importlib
import json
import math
import statistics
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.collectives import bench, cost
from dtcourse.collectives.cost import Link, Terms, bus_bandwidth, crossover, fit, seconds, terms
from dtcourse.collectives.network import EmulatedNetwork, sleep_until


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


SLOW = EmulatedNetwork(latency=20e-3, bandwidth=10e6)
SIZES = [4 << 10, 64 << 10, 256 << 10, 1 << 20]


def measure(module, collective, sizes, repeats=3):
    """Median seconds of the slowest rank."""
    algorithm = importlib.import_module(f"dtcourse.collectives.{module}")
    result = []
    for size in sizes:
        times = []
        for _ in range(repeats):
            x = torch.ones(size // 4)
            # Ranks leave a barrier up to a latency apart; a moment of the clock they share is the same for all.
            moment = torch.tensor([time.monotonic()], dtype=torch.double)
            dist.all_reduce(moment, op=dist.ReduceOp.MAX)
            start = moment.item() + 0.3
            sleep_until(start)
            getattr(algorithm, collective)(x)
            slowest = torch.tensor([time.monotonic() - start])
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            times.append(slowest.item())
        result.append(statistics.median(times))
    return result


@pytest.mark.timing
@pytest.mark.parametrize("algorithm", ["naive", "ring", "tree", "halving_doubling", "double_tree"])
def test_predicted_is_measured_within_15_percent(algorithm):
    link = Link(SLOW.latency, 1 / SLOW.bandwidth)
    measured = launch(measure, 4, algorithm, "all_reduce", SIZES, backend="ring", network=SLOW)[0]
    predicted = [seconds(algorithm, "all_reduce", s, 4, link) for s in SIZES]
    errors = [abs(m - p) / m for m, p in zip(measured, predicted, strict=True)]
    assert statistics.median(errors) < 0.15, list(zip(SIZES, measured, predicted, strict=True))


@pytest.mark.timing
def test_the_fit_finds_an_emulated_networks_own_numbers():
    pairs = launch(
        bench.ping_pong, 2, [1 << 10, 1 << 14, 1 << 18, 1 << 20], 3, 1, backend="ring", network=SLOW
    )[0]
    link = fit(*zip(*pairs, strict=True))
    assert link.alpha == pytest.approx(SLOW.latency, rel=0.1)
    assert link.bandwidth == pytest.approx(SLOW.bandwidth, rel=0.1)


@pytest.mark.parametrize("backend", [None, "ring"])
def test_the_benchmark_runs_every_collective(backend):
    def all_of_them():
        return {
            c: bench.sweep(c, [1 << 10, 1 << 14], repeats=2, warmup=1) for c in bench.COLLECTIVES
        }

    for rows in launch(all_of_them, 3, backend=backend)[0].values():
        assert [r["bytes"] for r in rows] == [1020, 16380]
        assert all(0 < r["fastest"] <= r["seconds"] <= r["slowest"] for r in rows)
