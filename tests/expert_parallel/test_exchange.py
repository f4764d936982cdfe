"""Dispatch and combine: every row at its expert and back, bytes and messages as counted by hand, one step or two."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from dtcourse import emulation, launch
from dtcourse.collectives import traffic
from dtcourse.emulation import EmulatedNetwork
from dtcourse.expert_parallel import combine, dispatch

E, D = 12, 5
LOADS = ("even", "uneven", "none at all")


def loads(kind, p):
    """Rows of each rank for each expert."""
    if kind == "even":
        return torch.full((p, E), 3)
    counts_pE = torch.randint(0, 5, (p, E), generator=torch.Generator().manual_seed(p))
    counts_pE[-1] = 0  # one has no rows,
    counts_pE[:, : E // p] = 0  # and nobody any for the first
    return torch.zeros_like(counts_pE) if kind == "none at all" else counts_pE


def both_ways(shape, kind, dtype=torch.double):
    """What came, what came back, what was sent: each with the rank and expert that a row is for written in it."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("node", "place")[-len(shape) :])
    p, me = dist.get_world_size(), dist.get_rank()
    counts_E = loads(kind, p)[me]
    experts_R = torch.arange(E).repeat_interleave(counts_E)
    rows_RD = torch.stack([experts_R, *[torch.arange(len(experts_R)) + 100 * me] * (D - 1)], 1)
    rows_RD = rows_RD.to(dtype).requires_grad_()
    groups = [mesh.get_group(i) for i in range(mesh.ndim)]
    with traffic.counting() as counted:
        arrived, counts, way = dispatch(rows_RD, counts_E, groups)
        there = counted.bytes_sent()
        back = combine(arrived * 2, way)
        (back * back).sum().backward()
    assert torch.equal(back, rows_RD * 2)
    assert torch.equal(rows_RD.grad, 8 * rows_RD.detach()), "the transpose of there and back"
    assert arrived.requires_grad
    sent = {
        peer: tuple(
            (counted.bytes_sent(peer=peer, phase=way), counted.messages_sent(peer=peer, phase=way))
            for way in ("forward", "backward")
        )
        for peer in range(p)
    }
    return arrived.detach(), counts, there, sent


@pytest.mark.parametrize("shape", [(1,), (2,), (3,), (4,), (2, 2), (2, 3)])
def test_rows_arrive_by_expert_and_bytes_are_the_formulas(shape):
    p = torch.Size(shape).numel()
    m, g = E // p, shape[-1]  # experts of a rank, ranks of a node (of the only one, on a flat mesh)
    run = launch(all_loads, p, shape, backend="ring")
    for kind in LOADS:
        counts_pE = loads(kind, p)
        to_pp = counts_pE.view(p, p, m).sum(2)  # rows of one rank for another's experts
        for rank, found in enumerate(run):
            arrived, counts, there, sent = found[kind]
            # Expert by expert, and within one in the order of the ranks that sent: as one process has them.
            right = [
                (e, 100 * r + int(counts_pE[r, :e].sum()) + i)
                for e in range(rank * m, (rank + 1) * m)
                for r in range(p)
                for i in range(counts_pE[r, e])
            ]
            assert [(int(row[0]), int(row[1])) for row in arrived] == right
            assert counts.tolist() == counts_pE[:, rank * m : (rank + 1) * m].sum(0).tolist()
            row = 8 * D
            node = range(rank // g * g, rank // g * g + g)
            for peer in range(p):
                flat = len(shape) == 1
                if peer == rank:
                    expected = (0, 0, 0)
                elif flat:
                    expected = (8 * m, to_pp[rank, peer], to_pp[peer, rank])
                elif peer in node:  # all that is for its place in any node, and back what came so
                    place, mine = peer % g, rank % g
                    expected = (
                        8 * m * (p // g),
                        to_pp[rank, place::g].sum(),
                        to_pp[peer, mine::g].sum(),
                    )
                elif peer % g == rank % g:  # the whole node's rows for this one rank
                    others = slice(peer // g * g, peer // g * g + g)
                    expected = (8 * m * g, to_pp[list(node), peer].sum(), to_pp[others, rank].sum())
                else:
                    expected = (0, 0, 0)
                small, out, back = (int(n) for n in expected)
                (forward, messages), (backward, again) = sent[peer]
                assert forward == small + row * (out + back), (kind, rank, peer)
                assert backward == row * (out + back)
                assert messages == (small > 0) + (out > 0) + (back > 0)
                assert again == (out > 0) + (back > 0)
            # Few messages leave the node, with the same bytes.
            outside = [peer for peer in range(p) if peer not in node]
            if not flat and kind == "even":
                assert sum(sent[peer][0][1] for peer in outside) == 3 * (p // g - 1)
                rows = int(to_pp[rank, outside].sum())
                assert sum(sent[peer][1][0] for peer in outside) == 2 * rows * row
            assert there == sum(
                expect
                for expect in [dispatched(shape, to_pp, rank, peer, m, row) for peer in range(p)]
            )


def dispatched(shape, to_pp, rank, peer, m, row):
    """Bytes of dispatch alone from one rank to another."""
    p, g = len(to_pp), shape[-1]
    if peer == rank:
        return 0
    if len(shape) == 1:
        return 8 * m + row * int(to_pp[rank, peer])
    node = slice(rank // g * g, rank // g * g + g)
    if peer // g == rank // g:
        return 8 * m * (p // g) + row * int(to_pp[rank, peer % g :: g].sum())
    return (8 * m * g + row * int(to_pp[node, peer].sum())) * (peer % g == rank % g)


def all_loads(shape):
    return {kind: both_ways(shape, kind) for kind in LOADS}


def over_gloo():
    return [
        torch.equal(a, b)
        for a, b in zip(both_ways((4,), "uneven")[:2], both_ways((2, 2), "uneven")[:2], strict=True)
    ]


def test_flat_and_hierarchical_bring_the_same_over_gloo():
    assert [*launch(over_gloo, 4)] == [[True, True]] * 4


def seconds(shape, width):
    mesh = init_device_mesh("cpu", shape)
    rows_RD, counts_E = torch.zeros(E, width), torch.ones(E, dtype=torch.long)
    groups = [mesh.get_group(i) for i in range(mesh.ndim)]
    start = emulation.now()
    dispatch(rows_RD, counts_E, groups)
    return emulation.now() - start


def few_and_many(shape):
    return seconds(shape, 2), seconds(shape, 20_000)


def test_two_steps_are_quicker_than_rounds_that_wait_where_links_between_nodes_are_slow():
    # Six ranks in two nodes: in rounds 3 slow messages one after the other, or 2 quick ones and 1 slow. Messages posted
    # at once would need one slow latency as well (lesson 21b).
    network = EmulatedNetwork(1e-6, 1e7, node_size=3, between=(1e-3, 1e6))
    options = {"backend": "ring", "network": network, "clock": "virtual"}
    (short, long), (short_steps, long_steps) = (
        map(max, zip(*launch(few_and_many, 6, shape, **options), strict=True))
        for shape in ((6,), (2, 3))
    )
    assert short == pytest.approx(2 * 3 * 1e-3, rel=0.05), "counts, then rows"
    assert short_steps == pytest.approx(2 * 1 * 1e-3, rel=0.1)
    # Two rows of 80 kB for each rank: 6 of them leave the node; inside, a step more for rows that leave it later.
    leave, inside = 6 * 80e3 / 1e6, 2 * 4 * 80e3 / 1e7
    assert long_steps == pytest.approx(leave + inside + 2 * 1e-3, rel=0.01)
    # In one step, some rank's message leaves its node in each of the five rounds, and neighbours wait for it.
    assert long == pytest.approx(5 * 160e3 / 1e6, rel=0.05)
