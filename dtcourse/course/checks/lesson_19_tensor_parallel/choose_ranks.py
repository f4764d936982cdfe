"""Over how many ranks each region of a model is cut, where hidden widths and links are unlike: run, under emulation."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, trials
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork

CUT = Exercise(
    "choose_ranks",
    lesson="19",
    title="Over how many ranks?",
    takes=("choose_ranks",),
    target="on 4 clusters of 2 nodes of 2 ranks, a forward and backward in at most 1.01 times the best choice's time; "
    "at most 7 of 27 choices measured",
    launches=True,
)

NODES, PLACES = 2, 2
MOST = 7  # choices that an answer may measure
DEGREES = (1, PLACES, NODES * PLACES)
CHOICES: list[trials.Choice] = list(product(DEGREES, repeat=3))
# Tokens, width, hidden widths of three regions; operations per second; seconds and bytes per second of a message inside
# a node, and between nodes.
Cluster = tuple[int, int, tuple[int, int, int], float, tuple[float, float], tuple[float, float]]
# With the best choice, which tests/course/test_choose_ranks.py finds by running every one.
NARROW: dict[Cluster, trials.Choice] = {
    (16, 16, (128, 32, 8), 1e9, (1e-5, 5e7), (1e-5, 2e7)): (2, 1, 1),
    (16, 16, (64, 16, 128), 5e8, (5e-5, 1e8), (5e-5, 1e8)): (1, 1, 2),
}
WIDE: dict[Cluster, trials.Choice] = {
    (32, 16, (32, 512, 96), 1e9, (1e-6, 2e8), (1e-6, 1e7)): (2, 4, 2),
    (16, 16, (4, 64, 256), 1e9, (1e-6, 1e8), (1e-6, 2e7)): (1, 2, 4),
}


def step(choice: trials.Choice, tokens: int, width: int, hidden: tuple[int, ...]) -> tuple[float]:
    """On each rank: the seconds of a forward and its backward, gradients of all weights included."""
    seconds, _ = trained(choice, tokens, width, hidden)
    return (seconds,)


def trained(
    choice: trials.Choice, tokens: int, width: int, hidden: tuple[int, ...]
) -> tuple[float, list[Tensor]]:
    """On each rank: the seconds; output, the gradient of the batch, and those of its slices of the weights."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    from dtcourse import emulation

    mesh = init_device_mesh("cpu", (NODES, PLACES), mesh_dim_names=("between", "inside"))
    groups: dict[int, Any] = {PLACES: mesh.get_group("inside"), NODES * PLACES: None}
    make = torch.Generator().manual_seed(0)
    x = torch.randn(tokens, width, generator=make).requires_grad_()
    regions = []
    for degree, inner in zip(choice, hidden, strict=True):
        place = dist.get_rank() % degree
        up = torch.randn(width, inner, generator=make).chunk(degree, 1)[place] / width**0.5
        down = torch.randn(inner, width, generator=make).chunk(degree)[place] / inner**0.5
        regions.append([w.contiguous().requires_grad_() for w in (up, down)])
    start = trials.begin_together()
    y = x
    for degree, (up, down) in zip(choice, regions, strict=True):
        y = y + _region(y, up, down, degree, groups.get(degree))
    y.backward(y.detach())
    seconds = emulation.now() - start
    given = x, *(w for region in regions for w in region)
    return seconds, [y.detach(), *(one.grad for one in given if one.grad is not None)]


def _region(x: Tensor, up: Tensor, down: Tensor, degree: int, group: Any) -> Tensor:
    """An MLP, cut by columns and by rows; whole on every rank where the degree is 1."""
    from dtcourse.tensor_parallel import mappings

    if degree == 1:
        return (x @ up).relu() @ down
    return mappings.reduce((mappings.copy(x, group) @ up).relu() @ down, group)


def case(cluster: Cluster) -> trials.Case:
    """A cluster, as an answer gets it."""
    tokens, width, hidden, flops, inside, between = cluster
    emulated = {
        "devices": EmulatedDevice(flops),
        "network": EmulatedNetwork(*inside, node_size=PLACES, between=between),
    }
    job = tokens, width, hidden
    told = (*job, list(DEGREES))
    return trials.Case(step, NODES * PLACES, CHOICES, job, told, MOST, emulated)


PRACTICE = case((16, 16, (24, 256, 64), 1e9, (1e-6, 1e8), (1e-6, 2e7)))


def _require(answer: Answer, cases: dict[Cluster, trials.Choice], hint: str) -> None:
    for cluster, best in cases.items():
        tokens, width, hidden, flops, inside, between = cluster
        where = (
            f"{tokens} tokens of width {width}, hidden widths {hidden}, {flops:g} FLOP/s, messages of {inside[0]:g} s "
            f"and {inside[1]:g} bytes/s inside a node, {between[0]:g} s and {between[1]:g} bytes/s between nodes"
        )
        why = f"Each of the three numbers is one of {DEGREES}."
        trials.require_near_best_of([best], answer, case(cluster), where, why, hint)


@CUT.check("where products are small or messages late", points=3)
def check_narrow(answer: Answer) -> None:
    """Not every region is worth its messages."""
    _require(
        answer,
        NARROW,
        "What does cutting a region spare, and what do its two all-reduces cost? Was each region measured whole, too?",
    )


@CUT.check("where a region is wide", points=3)
def check_wide(answer: Answer) -> None:
    """And others are not."""
    _require(
        answer,
        WIDE,
        "Does every region have to be cut over as many ranks as the others? Which has so much to compute that all "
        "ranks are worth the links between nodes?",
    )
