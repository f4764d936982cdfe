"""How a region's messages travel beside its products: a ring, or how many parts. Really run, under emulation."""

from __future__ import annotations

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, require_near_best, trials
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork

CHOOSE = Exercise(
    "choose_overlap",
    lesson="19b",
    title="Choose how to overlap",
    takes=("choose_overlap",),
    launches=True,
    target="on 4 clusters a step of at most 1.01 times the best choice's, measured; at most 6 of 10 choices tried",
)

RANKS, TOKENS = 4, 48
MOST = 6  # choices that an answer may try
PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
RING = ("ring", RANKS)
CHOICES: list[trials.Choice] = [*(("all-reduce", k) for k in PARTS), RING]
# Width, hidden width; operations per second, bytes per second of memory; latency, bytes per second of a link.
Cluster = tuple[int, int, float, float, float, float]
# With the best choice, which tests/course/test_choose_overlap.py finds by running every one.
QUICK: dict[Cluster, trials.Choice] = {
    (16, 64, 1e8, 2e8, 1e-4, 2e7): RING,
    (16, 128, 1e8, 2e7, 1e-5, 5e7): ("all-reduce", 1),
}
LONG: dict[Cluster, trials.Choice] = {
    (16, 64, 1e8, 1e9, 1e-6, 1e7): ("all-reduce", 8),
    (16, 128, 1e8, 4e7, 1e-6, 2e7): ("all-reduce", 2),
}


def step(choice: trials.Choice, width: int, hidden: int) -> tuple[float]:
    """On each rank: the seconds of a region's forward and backward, all weights' gradients included."""
    seconds, _ = trained(choice, width, hidden)
    return (seconds,)


def trained(
    choice: trials.Choice, width: int, hidden: int
) -> tuple[float, tuple[Tensor, Tensor, Tensor]]:
    """On each rank: seconds, and the gradients of x (all tokens', or its own) and of its slices of up and down."""
    import torch.distributed as dist

    from dtcourse import emulation

    torch.manual_seed(0)
    rank = dist.get_rank()
    x, up, down = (torch.randn(s) / 4 for s in ((TOKENS, width), (width, hidden), (hidden, width)))
    up, down = (w.clone() for w in (up.chunk(RANKS, 1)[rank], down.chunk(RANKS)[rank]))
    way, parts = choice
    start = trials.begin_together()
    if way == "ring":
        gradients = _in_ring(x.chunk(RANKS)[rank].clone(), up, down)
    else:
        gradients = _in_parts(x, up, down, parts)
    return emulation.now() - start, gradients


def _in_ring(own: Tensor, up: Tensor, down: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Asynchronous tensor parallelism: the loss is half the sum of squares."""
    from dtcourse.tensor_parallel import gather_linear, linear_sum

    given = own, up.T.contiguous(), down.T.contiguous()
    for t in given:
        t.requires_grad_()
    (h,) = gather_linear(given[0], [given[1]], gather_again=False)
    y = linear_sum(h.relu(), given[2])
    dx, d_up, d_down = torch.autograd.grad(y, given, y.detach())
    return dx, d_up.T, d_down.T


def _in_parts(x: Tensor, up: Tensor, down: Tensor, parts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Each part's all-reduce beside the products of the next part, forward and backward."""
    import torch.distributed as dist

    hs, ys, works = [], [], []
    for part in x.chunk(parts):
        hs.append((part @ up).relu_())
        ys.append(hs[-1] @ down)
        works.append(dist.all_reduce(ys[-1], async_op=True))
    for work in works:
        work.wait()
    works, dxs = [], []
    d_up, d_down = torch.zeros_like(up), torch.zeros_like(down)
    for part, h, y in zip(x.chunk(parts), hs, ys, strict=True):
        dh = (y @ down.T) * (h > 0)
        dxs.append(dh @ up.T)
        works.append(dist.all_reduce(dxs[-1], async_op=True))
        d_down.addmm_(h.T, y)
        d_up.addmm_(part.T, dh)
    for work in works:
        work.wait()
    return torch.cat(dxs), d_up, d_down


def case(cluster: Cluster) -> trials.Case:
    """A cluster, as an answer gets it."""
    width, hidden, flops, bandwidth, latency, link = cluster
    emulated = {
        "devices": EmulatedDevice(flops, bandwidth),
        "network": EmulatedNetwork(latency, link),
    }
    return trials.Case(step, RANKS, CHOICES, (width, hidden), (RANKS, PARTS), MOST, emulated)


PRACTICE = case(next(iter(LONG)))


def _require(answer: Answer, cases: dict[Cluster, trials.Choice], hint: str) -> None:
    for cluster, best in cases.items():
        width, hidden, flops, _, latency, link = cluster
        where = (
            f"Width {width}, hidden width {hidden}, {flops:.3g} operations per second, links of {link:.3g} bytes per "
            f"second and {latency:.3g} s"
        )
        tried = case(cluster).tried(answer, step, [best])
        ((least,),) = tried.probed
        (taken,) = trials.require_possible(
            where, tried, RING, f"Possible are {RING!r}, and 'all-reduce' with one of {PARTS}."
        )
        require_near_best(where, tried.choice, taken * 1e3, least * 1e3, "ms", hint)


@CHOOSE.check("where pieces cost much", points=3)
def check_costly(answer: Answer) -> None:
    """Each all-reduce is late, or memory is slow."""
    _require(
        answer,
        QUICK,
        "What does each further part cost: in latency, and in reading and adding weights once more? And was the "
        "other way measured as well?",
    )


@CHOOSE.check("where pieces cost little", points=3)
def check_cheap(answer: Answer) -> None:
    """Messages are long beside their latency."""
    _require(
        answer,
        LONG,
        "What is left to wait for after the last part? Is what was measured on one side of your choice worse, and "
        "on the other, too?",
    )
