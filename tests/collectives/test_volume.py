"""Messages and bytes per rank: counted, against each algorithm's own formula and against the textbook's."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.collectives import double_tree, halving_doubling, hierarchical, naive, ring, tree
from dtcourse.collectives.chunks import Volume

Count = dict[str, tuple[int, int]]


def count_all(elements: int, chunk_bytes: int, root: int) -> Count:
    """What this rank sends in each collective of each algorithm: (messages, bytes)."""
    from dtcourse.collectives import (
        double_tree,
        halving_doubling,
        hierarchical,
        naive,
        pairwise,
        ring,
        traffic,
        tree,
    )

    rank, ranks = dist.get_rank(), dist.get_world_size()
    x = torch.ones(elements)
    whole, parts = torch.ones(elements * ranks), [torch.ones(elements) for _ in range(ranks)]
    counts: Count = {}

    def count(name: str, collective: Any, *args: Any, **options: Any) -> None:
        with traffic.counting() as counted:
            collective(*args, **options)
        counts[name] = counted.messages_sent(), counted.bytes_sent()

    for module in (naive, ring, tree, double_tree, halving_doubling):
        name = module.__name__.rpartition(".")[2]
        options = {"chunk_bytes": chunk_bytes} if module in (ring, double_tree) else {}
        count(f"{name}.all_reduce", module.all_reduce, x, **options)
        count(f"{name}.broadcast", module.broadcast, x, root, **options)
        count(f"{name}.reduce", module.reduce, x, root, **options)
        if module is not double_tree:
            count(f"{name}.all_gather", module.all_gather, parts, x, **options)
            count(f"{name}.all_gather_single", module.all_gather_single, whole, x, **options)
            count(f"{name}.reduce_scatter", module.reduce_scatter, x, parts, **options)
            count(
                f"{name}.reduce_scatter_single", module.reduce_scatter_single, x, whole, **options
            )
        if module in (naive, tree):
            mine = parts if rank == root else None
            count(f"{name}.scatter", module.scatter, x, mine, root)
            count(f"{name}.gather", module.gather, x, mine, root)
    count("halving_doubling.doubling_all_reduce", halving_doubling.doubling_all_reduce, x)
    count("halving_doubling.barrier", halving_doubling.barrier)
    for module in (naive, pairwise):
        name = module.__name__.rpartition(".")[2]
        count(f"{name}.all_to_all", module.all_to_all, [p.clone() for p in parts], parts)
        count(f"{name}.all_to_all_single", module.all_to_all_single, whole.clone(), whole)
    if ranks % 2 == 0:
        count("hierarchical.all_reduce", hierarchical.all_reduce, x, node_size=2)
    return counts


@pytest.mark.parametrize(
    ("ranks", "elements", "chunk_bytes"),
    [
        (1, 5, 64),
        (2, 7, 8),
        (3, 24, 1 << 20),
        (4, 96, 1 << 20),
        (5, 41, 12),
        (6, 3, 64),
        (8, 640, 64),
    ],
)
def test_counted_messages_and_bytes_are_the_formulas(
    ranks: int, elements: int, chunk_bytes: int
) -> None:
    root = ranks - 1
    run = launch(count_all, ranks, elements, chunk_bytes, root, backend="gloo", device="cpu")
    for rank in range(ranks):
        for name, counted in run[rank].items():
            if elements % ranks and name in (
                "halving_doubling.broadcast",
                "halving_doubling.reduce",
            ):
                continue  # their formula is for equal blocks
            sent = predicted(name, elements, ranks, rank, root, chunk_bytes)
            assert counted == (sent.messages, 4 * sent.elements), f"{name} on rank {rank}"


def predicted(
    name: str, elements: int, ranks: int, rank: int, root: int, chunk_bytes: int
) -> Volume:
    import importlib

    algorithm, collective = name.split(".")
    collective = collective.removesuffix("_single")
    module = importlib.import_module(f"dtcourse.collectives.{algorithm}")
    formula = getattr(module, f"{collective}_volume")
    chunked = {"chunk_bytes": chunk_bytes} if algorithm in ("ring", "double_tree") else {}
    if collective == "barrier":
        sent = formula(ranks, rank)
        return Volume(sent.messages, Fraction(sent.elements, 4))  # one byte each
    if algorithm == "hierarchical":
        inside, between = formula(elements, ranks, rank, node_size=2)
        return inside + between
    if collective in ("broadcast", "reduce", "scatter", "gather"):
        return formula(elements, ranks, rank, root, **chunked)
    if algorithm == "ring" and collective in ("all_gather", "reduce_scatter"):
        return formula(elements * ranks, ranks, rank, **chunked)
    return formula(elements, ranks, rank, **chunked)


# --- the formulas against the textbook's (shared/published/collectives_cost_models.json) ------------------------

POWERS = [2, 4, 8, 16, 64]
OTHERS = [3, 5, 6, 7, 12, 100]


def all_ranks(formula: Any, elements: int, ranks: int, **options: Any) -> list[Volume]:
    return [formula(elements, ranks, rank, **options) for rank in range(ranks)]


@pytest.mark.parametrize("p", POWERS + OTHERS)
def test_ring_is_two_times_p_minus_1_messages_of_a_p_th(p: int) -> None:
    n = 5 * p
    assert (
        all_ranks(ring.all_reduce_volume, n, p) == [Volume(2 * (p - 1), 2 * n * (p - 1) // p)] * p
    )
    assert all_ranks(ring.reduce_scatter_volume, n, p) == [Volume(p - 1, n * (p - 1) // p)] * p
    assert all_ranks(ring.all_gather_volume, n, p) == [Volume(p - 1, n * (p - 1) // p)] * p


@pytest.mark.parametrize("p", POWERS)
def test_halving_and_doubling_is_two_times_log_p_messages(p: int) -> None:
    n, lg = 5 * p, int(math.log2(p))
    rabenseifner = all_ranks(halving_doubling.all_reduce_volume, n, p)
    assert rabenseifner == [Volume(2 * lg, 2 * n * (p - 1) // p)] * p
    assert all_ranks(halving_doubling.doubling_all_reduce_volume, n, p) == [Volume(lg, n * lg)] * p
    block = n // p
    assert (
        all_ranks(halving_doubling.reduce_scatter_volume, block, p)
        == [Volume(lg, n * (p - 1) // p)] * p
    )
    assert (
        all_ranks(halving_doubling.all_gather_volume, block, p)
        == [Volume(lg, n * (p - 1) // p)] * p
    )


@pytest.mark.parametrize("p", OTHERS)
def test_halving_and_doubling_beside_a_power_of_two(p: int) -> None:
    """On the critical path 2 floor(log2 p) + 2 messages; a rank sends one fewer,
    since it receives the first of them."""
    q = 1 << (p.bit_length() - 1)
    n, lg = 5 * q, int(math.log2(q))
    sent = all_ranks(halving_doubling.all_reduce_volume, n, p)
    volume = 2 * n * (q - 1) // q
    assert sorted(set(sent)) == sorted(
        {Volume(1, n), Volume(2 * lg, volume), Volume(2 * lg + 1, volume + n)} & set(sent)
    )
    assert sent.count(Volume(1, n)) == sent.count(Volume(2 * lg + 1, volume + n)) == p - q


@pytest.mark.parametrize("p", POWERS + OTHERS)
def test_binomial_tree_has_ceil_log_p_messages_at_the_root(p: int) -> None:
    n, lg = 7, math.ceil(math.log2(p))
    sent = all_ranks(tree.broadcast_volume, n, p)
    assert max(sent) == sent[0] == Volume(lg, n * lg)
    assert sum(s.elements for s in sent) == n * (p - 1)  # each other rank gets it once
    assert all_ranks(tree.reduce_volume, n, p) == [Volume(0, 0)] + [Volume(1, n)] * (p - 1)
    assert all_ranks(tree.scatter_volume, n, p)[0] == Volume(lg, n * (p - 1))


@pytest.mark.parametrize("p", POWERS + OTHERS)
def test_two_trees_share_the_work(p: int) -> None:
    """No rank sends more than 2 n, and a rank that is inner in one tree is a leaf in the other (but one, for odd p)."""
    n = 1000
    first, second = double_tree.two_trees(p)
    inner = [bool(a.children) and bool(b.children) for a, b in zip(first, second, strict=True)]
    assert sum(inner) <= p % 2
    assert max(len(a.children) + len(b.children) for a, b in zip(first, second, strict=True)) <= 2
    sent = all_ranks(double_tree.all_reduce_volume, n, p)
    assert max(s.elements for s in sent) <= 2 * n
    assert sum(s.elements for s in sent) == 2 * n * (p - 1)
    for tree_ in (first, second):
        assert sum(node.parent is None for node in tree_) == 1
        assert max(depth(tree_, r) for r in range(p)) <= math.ceil(math.log2(p))
        for rank, node in enumerate(tree_):
            assert all(tree_[c].parent == rank for c in node.children)


def depth(nodes: list[double_tree.Node], rank: int) -> int:
    parent = nodes[rank].parent
    return 0 if parent is None else 1 + depth(nodes, parent)


@pytest.mark.parametrize("p", POWERS + OTHERS)
def test_naive_root_sends_everything(p: int) -> None:
    n = 7
    assert all_ranks(naive.all_reduce_volume, n, p) == [Volume(p - 1, n * (p - 1))] + [
        Volume(1, n)
    ] * (p - 1)


@pytest.mark.parametrize(("nodes", "g"), [(2, 2), (4, 2), (2, 8), (16, 8)])
def test_two_levels_send_a_gth_over_the_slow_links(nodes: int, g: int) -> None:
    p = nodes * g
    n = 3 * p
    for rank in range(p):
        inside, between = hierarchical.all_reduce_volume(n, p, rank, g)
        assert inside.elements == 2 * (g - 1) * n // g
        assert between.elements == 2 * (nodes - 1) * (n // g) // nodes
        whole = inside.elements + between.elements
        # published: the fraction of a rank's bytes that leaves the node is (k - 1)/(p - 1)
        assert Fraction(between.elements, whole) == Fraction(nodes - 1, p - 1)
