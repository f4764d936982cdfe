"""The model against its sources, against counted traffic, and against an emulated network."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path

import pytest
import torch

from dtcourse import emulation, launch
from dtcourse.collectives import double_tree
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
from tests.turns import taking_turns


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


@pytest.mark.needs("shared")
def test_bus_factors_are_those_of_nccl_tests():
    published = Path(__file__).parents[3] / "shared/published/collectives_cost_models.json"
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
    sent = getattr(module, f"{collective}_volume")(elements, p, 0)
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


def emulated_seconds(calls):
    """Seconds of each (collective, bytes, chunk_bytes) of the double tree on this rank."""
    taken = []
    for start, (collective, nbytes, chunk) in enumerate(calls, 1):
        x = torch.ones(nbytes // 4)
        root = () if collective == "all_reduce" else (0,)
        emulation.sleep(start - emulation.now())
        getattr(double_tree, collective)(x, *root, chunk_bytes=chunk)
        taken.append(emulation.now() - start)
    return taken


def on_network(network, ranks, calls):
    run = launch(
        emulated_seconds,
        ranks,
        calls,
        backend="ring",
        device="cpu",
        network=network,
        clock="virtual",
    )
    return [max(taken) for taken in zip(*run, strict=True)]


@pytest.mark.parametrize("p", [2, 4, 6, *taking_turns(7, 8, 9, about="dtcourse/simulator/")])
def test_a_double_tree_in_chunks_takes_about_what_the_model_says(p):
    """Formulas against messages that take ports one after the other; exact for one chunk and powers of two."""
    power = p & (p - 1) == 0
    for latency in (2e-6, 20e-6, 100e-6):
        # A tenth of the bytes at a tenth of the bandwidth: the seconds of 480 KB and 4.8 MB at 10 GB/s.
        network = EmulatedNetwork(latency=latency, bandwidth=1e9, gap=5e-6)
        link = Link(latency, 1 / network.bandwidth, gap=network.gap)
        calls = [
            (collective, n, n // 2 // chunks + short)
            for collective in ("all_reduce", "reduce", "broadcast")
            for n in (48_000, 480_000)
            for chunks, short in ((1, 0), (2, 0), (3, 0), (4, n // 60), (8, 0), (30, 0))
        ]
        for (collective, n, chunk), taken in zip(calls, on_network(network, p, calls), strict=True):
            ratio = taken / seconds("double_tree", collective, n, p, link, chunk)
            if power and chunk == n // 2:
                assert ratio == pytest.approx(1, rel=1e-9)
            assert 0.75 < ratio < 1.2, (collective, n, chunk, latency)


def test_the_chunks_of_a_double_tree_follow_each_other():
    """A program that takes its chunks in the order of a loop took 2.57 ms with one chunk
    per half and 3.38 with eight."""
    network = EmulatedNetwork(latency=20e-6, bandwidth=10e9, gap=5e-6)
    link = Link(network.latency, 1 / network.bandwidth, gap=network.gap)
    n, p, counts = 4_800_000, 8, [1, 2, 4, 8, 16, 32, 64]
    taken = on_network(network, p, [("all_reduce", n, n // 2 // count) for count in counts])
    said = [seconds("double_tree", "all_reduce", n, p, link, n // 2 // count) for count in counts]
    assert taken[0] == pytest.approx(2 * 3 * 20e-6 + 2 * (2 * 3 - 1) * (5e-6 + n / 2 / 10e9))
    assert min(taken) < 0.52 * taken[0]
    assert taken.index(min(taken)) == said.index(min(said)) == counts.index(8)
    # No port can do better: an inner rank sends four halves in turn, each as eight messages.
    assert min(taken) > 4 * (8 * 5e-6 + n / 2 / 10e9)


@pytest.mark.parametrize("backend", [None, "ring"])
def test_the_benchmark_runs_every_collective(backend):
    def all_of_them():
        return {
            c: bench.sweep(c, [1 << 10, 1 << 14], repeats=2, warmup=1) for c in bench.COLLECTIVES
        }

    for rows in launch(all_of_them, 3, backend=backend)[0].values():
        assert [r["bytes"] for r in rows] == [1020, 16380]
        assert all(0 < r["fastest"] <= r["seconds"] <= r["slowest"] for r in rows)
