"""Every algorithm runs where sends and receives keep NCCL's order (tests/nccl_order.py), and gives what gloo gives."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from dtcourse import launch
from dtcourse.collectives import (
    double_tree,
    halving_doubling,
    hierarchical,
    naive,
    naive_ring,
    p2p,
    ring,
    tree,
)
from tests import nccl_order
from tests.turns import taking_turns

CHUNKS = (1 << 20, 12, 4)  # bytes: all in one message, three elements in each, one in each
PLAIN = (naive, tree, halving_doubling)


def calls(algorithm: ModuleType, **options: int) -> list[list[float]]:
    """What this rank ends with after each collective that the algorithm has, on 13 and on 2 elements."""
    rank, size = p2p.rank(), p2p.size()
    found = []
    for elements in (13, 2):
        mine = torch.arange(float(elements)) + 100 * rank
        for name in ("all_reduce", "broadcast", "reduce"):
            x = mine.clone()
            if name == "all_reduce":
                algorithm.all_reduce(x, **options)
            else:
                getattr(algorithm, name)(x, size - 1, **options)
            found.append(x.tolist())
        if hasattr(algorithm, "reduce_scatter_single"):
            whole = mine.repeat(size)
            algorithm.reduce_scatter_single(x, whole, **options)
            algorithm.all_gather_single(whole, mine, **options)
            found += [x.tolist(), whole.tolist()]
    return found


def everything() -> dict[str, list[list[float]]]:
    found = {
        f"{a.__name__}, {c}": calls(a, chunk_bytes=c) for a in (ring, double_tree) for c in CHUNKS
    }
    if p2p.size() % 2 == 0:
        for between in (ring, double_tree):  # whose messages travel in subgroups
            x = torch.arange(13.0) + 100 * p2p.rank()
            hierarchical.all_reduce(x, node_size=2, between=between)
            found[f"hierarchical, {between.__name__}"] = [x.tolist()]
    found["naive_ring"] = []
    for elements in (13, 2):
        x = torch.arange(float(elements)) + 100 * p2p.rank()
        naive_ring.all_reduce(x)
        found["naive_ring"].append(x.tolist())
    return found | {a.__name__: calls(a) for a in PLAIN}


@pytest.mark.parametrize("ranks", [2, 3, *taking_turns(4, 6, about="dtcourse/collectives/")])
def test_what_runs_on_gloo_runs_in_nccl_s_order(ranks):
    on_gloo = launch(everything, ranks, timeout=120)
    for rule in nccl_order.RULES:
        for rank, found in enumerate(nccl_order.launch(everything, ranks, rule, timeout=200)):
            for name, got in found.items():
                assert got == on_gloo[rank][name], (rule, rank, name)
