"""Which part of a gradient travels, and how much of it, for a given part of its length. Really run, under emulation."""

from __future__ import annotations

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, require, require_near_best, trials
from dtcourse.emulation import EmulatedNetwork
from dtcourse.plural import plural

CHOOSE = Exercise(
    "choose_sparse",
    lesson="12",
    title="Choose what travels",
    takes=("choose_sparse",),
    target="on 4 clusters the part that is to be kept, in at most 1.01 times the best choice's time; at most 10 of 19 "
    "choices measured",
    launches=True,
)

N, BLOCK = 2560, 32  # numbers of a gradient, and of a block or row
MOST = 10  # choices that an answer may measure
PERCENTS = (1, 2, 5, 10, 20, 50)
WAYS = ("top-k", "blocks", "random-k")
CHOICES: list[trials.Choice] = [("whole", 100), *((way, n) for way in WAYS for n in PERCENTS)]
# What selecting takes, in copies of the gradient, as lesson 12 prints it: by a sample, blocks, random-k.
COPIES = {"whole": 0.0, "top-k": 10.4, "blocks": 9.5, "random-k": 1.6}
# Ranks; what the gradients are like; what is to be kept of the mean's squared length; bytes per second of a rank's
# memory; seconds and bytes per second of a message.
Cluster = tuple[int, str, float, float, float, float]
# With the best choice, which tests/course/test_choose_sparse.py finds by running every one.
FEW: dict[Cluster, trials.Choice] = {
    (2, "few", 0.8, 1e9, 1e-5, 5e6): ("top-k", 2),
    (4, "rows", 0.95, 1e9, 1e-5, 5e6): ("blocks", 10),
}
MANY: dict[Cluster, trials.Choice] = {
    (4, "alike", 0.4, 1e9, 1e-5, 1e7): ("random-k", 50),
    (2, "few", 0.8, 1e8, 1e-6, 4e7): ("whole", 100),
}


def step(choice: trials.Choice, kind: str, memory: float) -> tuple[float, float]:
    """On each rank: seconds until the mean is there, and the part of its squared length that is kept."""
    import torch.distributed as dist

    from dtcourse import emulation

    p = dist.get_world_size()
    vectors = drawn(kind, p)
    start = trials.begin_together()
    mean = averaged(choice, vectors[dist.get_rank()], memory)
    seconds = emulation.now() - start
    right = torch.stack(vectors).mean(0)
    return seconds, 1 - float((mean - right).square().sum() / right.square().sum())


def drawn(kind: str, ranks: int) -> list[Tensor]:
    """Each rank's gradient, (N,): what is common to all ranks, and noise. All numbers alike, few large, or few rows."""
    make = torch.Generator().manual_seed(ranks)
    common = torch.randn(N, generator=make)
    if kind == "few":
        common *= torch.where(torch.rand(N, generator=make) < 0.04, 8.0, 0.3)
    else:
        common = common.sign()
    noise = 0.3 * torch.randn(ranks, N, generator=make)
    if kind == "rows":
        touched = torch.zeros(N // BLOCK, 1)
        touched[torch.randperm(N // BLOCK, generator=make)[:7]] = 1.0
        common, noise = (
            (x.view(-1, N // BLOCK, BLOCK) * touched).flatten(1) for x in (common, noise)
        )
    return list(common + noise)


def averaged(choice: trials.Choice, x: Tensor, memory: float) -> Tensor:
    """The mean over all ranks of what travels. What selecting takes is slept; the messages are real."""
    from dtcourse import emulation

    way, percent = choice
    emulation.sleep(COPIES[way] * 2 * x.nbytes / memory)
    if way == "whole":
        return _summed(x.clone())
    if way == "random-k":
        at = torch.randperm(N, generator=torch.Generator().manual_seed(1))[: N * percent // 100]
        return torch.zeros_like(x).index_copy(0, at, _summed(x[at]))
    blocks = x.view(-1, BLOCK if way == "blocks" else 1)
    at = blocks.norm(dim=1).topk(-(-len(blocks) * percent // 100)).indices
    mean = torch.zeros_like(blocks)
    for values, places in zip(_gathered(blocks[at]), _gathered(at.int()), strict=True):
        mean.index_add_(0, places.long(), values / _ranks())
    return mean.flatten()


def _ranks() -> int:
    import torch.distributed as dist

    return dist.get_world_size()


def _summed(x: Tensor) -> Tensor:
    import torch.distributed as dist

    dist.all_reduce(x)
    return x / _ranks()


def _gathered(x: Tensor) -> list[Tensor]:
    import torch.distributed as dist

    everyone = [torch.empty_like(x) for _ in range(_ranks())]
    dist.all_gather(everyone, x)
    return everyone


def case(cluster: Cluster) -> trials.Case:
    """A cluster, as an answer gets it."""
    ranks, kind, least, memory, latency, bandwidth = cluster
    told = list(WAYS), list(PERCENTS), least
    network = {"network": EmulatedNetwork(latency, bandwidth)}
    return trials.Case(step, ranks, CHOICES, (kind, memory), told, MOST, network)


PRACTICE = case((2, "few", 0.6, 5e8, 1e-5, 1e7))


def _require(answer: Answer, cases: dict[Cluster, trials.Choice], hint: str) -> None:
    for cluster, best in cases.items():
        ranks, _, least, memory, _, bandwidth = cluster
        where = (
            f"{plural(ranks, 'rank')}, {memory:.3g} bytes/s of memory, {bandwidth:.3g} bytes/s of network, {least:.0%} "
            "of the squared length to be kept"
        )
        tried = case(cluster).tried(answer, step, [best])
        ((quickest, _),) = tried.probed
        why = f"Possible are ('whole', 100), and one of {', '.join(WAYS)} with one of {PERCENTS}."
        taken, kept = trials.require_possible(where, tried, ("top-k", 5), why)
        require(
            kept >= least,
            f"{where}: {tried.choice!r} keeps {kept:.0%}. What did `measure` say of it, beside the seconds?",
        )
        require_near_best(where, tried.choice, taken * 1e3, quickest * 1e3, "ms", hint)


@CHOOSE.check("a part holds nearly all", points=4)
def check_few(answer: Answer) -> None:
    """And the link is slow."""
    _require(
        answer,
        FEW,
        "How small a part keeps enough, in each way? Where large numbers lie beside one another, what do they share?",
    )


@CHOOSE.check("no part is enough, or to find it takes too long", points=4)
def check_many(answer: Answer) -> None:
    """Where all numbers are alike; and where the network is quick."""
    _require(
        answer,
        MANY,
        "What can be added on the way, and what has to come to everyone? How long does selecting take, beside the "
        "messages that it spares? Were the other ways measured as well?",
    )
