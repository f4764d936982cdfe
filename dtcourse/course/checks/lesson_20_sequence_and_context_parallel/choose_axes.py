"""How attention crosses each of two axes, the ranks of a node and the nodes: forward and backward, under emulation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, trials
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork

AXES = Exercise(
    "choose_axes",
    lesson="20",
    title="Which way on which axis",
    takes=("choose_axes",),
    target="on 5 clusters of 2 nodes of 2 ranks, a forward and backward in at most 1.01 times the best one's time; "
    "at most 3 of 7 choices measured",
    launches=True,
)

NODES, PLACES, DIM = 2, 2, 8
MOST = 3  # choices that an answer may measure
# Inside a node, and between nodes.
CHOICES: list[trials.Choice] = [
    ("Ulysses", "Ulysses"),
    ("Ulysses", "ring"),
    ("Ulysses", "gather"),
    ("ring", "Ulysses"),
    ("ring", "ring"),
    ("gather", "Ulysses"),
    ("gather", "gather"),
]
# Tokens, query heads, key-value heads; operations per second; seconds and bytes per second of a message inside a node,
# and between nodes.
Cluster = tuple[int, int, int, float, tuple[float, float], tuple[float, float]]
# With the best choice, which tests/course/test_choose_axes.py finds by running every one.
LONG: dict[Cluster, trials.Choice] = {
    (96, 8, 4, 1e9, (1e-6, 1e8), (1e-6, 1e7)): ("Ulysses", "ring"),
    (128, 4, 1, 1e9, (1e-4, 1e8), (1e-4, 5e6)): ("ring", "ring"),
}
SHORT: dict[Cluster, trials.Choice] = {
    (64, 8, 8, 1e9, (1e-6, 2e7), (1e-6, 2e7)): ("Ulysses", "Ulysses"),
    (64, 8, 1, 1e10, (1e-6, 1e7), (1e-6, 1e7)): ("gather", "gather"),
    (64, 8, 8, 1e9, (1e-6, 2e8), (1e-6, 1.4e7)): ("ring", "Ulysses"),
}


def step(choice: trials.Choice, tokens: int, heads: int, kv_heads: int) -> tuple[float]:
    """On each rank: the seconds of a forward and its backward, without a mask."""
    seconds, _ = trained(choice, tokens, heads, kv_heads)
    return (seconds,)


def trained(
    choice: trials.Choice, tokens: int, heads: int, kv_heads: int
) -> tuple[float, list[Tensor]]:
    """On each rank: the seconds; its output, and the gradients of its q, k and v."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    from dtcourse import emulation

    mesh = init_device_mesh("cpu", (NODES, PLACES), mesh_dim_names=("between", "inside"))
    make = torch.Generator().manual_seed(0)
    whole = [
        torch.randn(1, n, tokens, DIM, generator=make) for n in (heads, kv_heads, kv_heads, heads)
    ]
    q, k, v, grad = (x.chunk(NODES * PLACES, 2)[dist.get_rank()].clone() for x in whole)
    for x in (q, k, v):
        x.requires_grad_()
    inside, between = (mesh.get_group(name) for name in ("inside", "between"))
    start = trials.begin_together()
    if choice[0] == choice[1]:  # all ranks in one group
        out = _attention(q, k, v, choice[0], None)
    elif choice[0] == "Ulysses":
        out = _heads_first(q, k, v, inside, choice[1], between)
    else:
        out = _heads_first(q, k, v, between, choice[0], inside)
    out.backward(grad)
    found = [out.detach(), *(x.grad for x in (q, k, v) if x.grad is not None)]
    return emulation.now() - start, found


def _heads_first(q: Tensor, k: Tensor, v: Tensor, group: Any, way: str, other: Any) -> Tensor:
    """Ulysses on one axis, and on the other, for the heads and tokens that a rank then has, another way."""
    from dtcourse.sequence_parallel import ulysses_attention

    def kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _attention(q, k, v, way, other)

    return ulysses_attention(q, k, v, group=group, kernel=kernel)


def _attention(q: Tensor, k: Tensor, v: Tensor, way: str, group: Any) -> Tensor:
    """One way over the ranks of a group. Without a mask the order of keys does not matter."""
    import torch.distributed as dist
    import torch.nn.functional as F

    from dtcourse.collectives import autograd
    from dtcourse.sequence_parallel import ring_attention, ulysses_attention

    if way == "ring":
        return ring_attention(q, k, v, group=group)
    if way == "Ulysses":
        return ulysses_attention(q, k, v, group=group)
    both = torch.stack([k, v]).movedim(3, 0).contiguous()
    keys, values = autograd.all_gather(both, group=group, using=dist).movedim(0, 3)
    return F.scaled_dot_product_attention(q, keys, values, enable_gqa=True)


def case(cluster: Cluster) -> trials.Case:
    """A cluster, as an answer gets it."""
    *job, flops, inside, between = cluster
    emulated = {
        "devices": EmulatedDevice(flops),
        "network": EmulatedNetwork(*inside, node_size=PLACES, between=between),
    }
    return trials.Case(step, NODES * PLACES, CHOICES, job, job, MOST, emulated)


PRACTICE = case((128, 8, 2, 1e9, (1e-6, 1e8), (1e-5, 5e6)))


def _require(answer: Answer, cases: dict[Cluster, trials.Choice], hint: str) -> None:
    for cluster, best in cases.items():
        tokens, heads, kv_heads, flops, inside, between = cluster
        where = (
            f"{tokens} tokens, {heads} query heads and {kv_heads} of keys and values, {flops:g} FLOP/s, messages of "
            f"{inside[0]:g} s and {inside[1]:g} bytes/s inside a node, {between[0]:g} s and {between[1]:g} bytes/s "
            "between nodes"
        )
        why = f"Possible are {', '.join(map(repr, CHOICES))}: inside a node, between nodes."
        trials.require_near_best_of([best], answer, case(cluster), where, why, hint)


@AXES.check("where computing takes long", points=3)
def check_long(answer: Answer) -> None:
    """What hides between the nodes."""
    _require(
        answer,
        LONG,
        "Which messages travel while a rank computes? And which way needs every key-value head on every rank of its "
        "axis?",
    )


@AXES.check("where messages take long", points=4)
def check_short(answer: Answer) -> None:
    """Bytes on each axis."""
    _require(
        answer,
        SHORT,
        "How many bytes does each way send over the slower links, with these heads, in both passes? And was it "
        "measured with the other ways on the faster ones?",
    )
