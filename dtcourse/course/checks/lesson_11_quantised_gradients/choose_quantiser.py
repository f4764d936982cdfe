"""Bits, block and way for a gradient, a cluster and an error. Really run, emulated."""

from __future__ import annotations

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, require, require_near_best, trials
from dtcourse.emulation import EmulatedNetwork
from dtcourse.plural import plural

CHOOSE = Exercise(
    "choose_quantiser",
    lesson="11",
    title="Choose bits, block and way",
    takes=("choose_quantiser",),
    target="on 6 clusters at most 1.01 times the best choice's time, within the error; at most 16 of 25 choices tried",
    launches=True,
)

NUMBERS = 12288
BITS, BLOCKS, WAYS = (2, 4, 8), (16, 64, 256, 1024), ("parts", "everyone")
FP32: trials.Choice = (32, None, "ring")
CHOICES: list[trials.Choice] = [
    *((bits, block, way) for bits in BITS for block in BLOCKS for way in WAYS),
    FP32,
]
MOST = 16  # choices that an answer may try
# Ranks, bytes per second of a link and of memory, seconds per message, the error allowed.
Cluster = tuple[int, float, float, float, float]
# With the best choice, which tests/course/test_choose_quantiser.py finds by running every one.
SLOW: dict[Cluster, trials.Choice] = {
    (4, 1e5, 1e9, 1e-5, 0.25): (4, 256, "parts"),
    (3, 1e6, 1e9, 1e-5, 0.02): (8, 256, "parts"),
}
FEW: dict[Cluster, trials.Choice] = {
    (2, 1e6, 1e9, 2e-3, 0.015): (8, 256, "everyone"),
    (4, 1e6, 1e9, 1e-2, 0.15): (4, 256, "everyone"),
}
FAST: dict[Cluster, trials.Choice] = {
    (4, 1e9, 2e9, 1e-6, 0.02): FP32,
    (2, 1e6, 1e9, 1e-5, 0.001): FP32,
}


def gradient(rank: int) -> Tensor:
    """(NUMBERS,): of very different sizes, as in a gradient; ranks have a part in common."""
    make = torch.Generator().manual_seed(0)
    sizes = torch.randn(NUMBERS // 64, generator=make).exp().repeat_interleave(64)
    common = torch.randn(NUMBERS, generator=make)
    make.manual_seed(1 + rank)
    return (common + torch.randn(NUMBERS, generator=make)) * sizes


def packed(x: Tensor, bits: int, block: int) -> Tensor:
    """A message, uint8: a scale per block, and the nearest codes, as many as fit a byte."""
    rows = x.view(-1, block)
    scale = rows.abs().amax(1) / (2 ** (bits - 1) - 1)
    each = 8 // bits
    codes = (rows / scale[:, None]).round().to(torch.int64).view(-1, each) & (2**bits - 1)
    whole = (codes << torch.arange(0, 8, bits)).sum(1).to(torch.uint8)
    return torch.cat([scale.view(torch.uint8), whole])


def unpacked(message: Tensor, n: int, bits: int, block: int) -> Tensor:
    """(n,): what a message says."""
    scales = message[: 4 * (n // block)].clone().view(torch.float32)
    codes = (message[4 * (n // block) :, None].to(torch.int64) >> torch.arange(0, 8, bits)) & (
        2**bits - 1
    )
    codes = torch.where(codes >= 2 ** (bits - 1), codes - 2**bits, codes)
    return (codes.view(-1, block) * scales[:, None]).flatten()


def step(choice: trials.Choice, memory: float) -> tuple[float, float]:
    """On each rank: seconds of a mean, and how far it is off, relatively. memory: bytes per second."""
    import torch.distributed as dist

    from dtcourse import emulation

    bits, block, way = choice
    p, x = dist.get_world_size(), gradient(dist.get_rank())
    n = NUMBERS if way == "everyone" else NUMBERS // p

    def touched(*tensors: Tensor) -> None:
        emulation.sleep(sum(t.numel() * t.element_size() for t in tensors) / memory)

    def everyones(message: Tensor) -> list[Tensor]:
        found = [torch.empty_like(message) for _ in range(p)]
        dist.all_gather(found, message)
        numbers = [unpacked(one, n, bits, block) for one in found]
        touched(*found, *numbers)
        return numbers

    start = trials.begin_together()
    if way == "ring":
        mean = x.clone()
        dist.all_reduce(mean)
        mean /= p
    elif way == "everyone":
        message = packed(x, bits, block)
        touched(x, message)
        mean = torch.stack(everyones(message)).mean(0)
    else:
        messages = torch.stack([packed(part, bits, block) for part in x.view(p, -1)])
        touched(x, messages)
        came = torch.empty_like(messages)
        dist.all_to_all_single(came, messages)
        part = torch.stack([unpacked(one, n, bits, block) for one in came]).mean(0)
        message = packed(part, bits, block)
        touched(came, x, part, message)
        mean = torch.cat(everyones(message))
    seconds = emulation.now() - start
    right = torch.stack([gradient(rank).double() for rank in range(p)]).mean(0)
    return seconds, float((mean - right).norm() / right.norm())


def case(cluster: Cluster) -> trials.Case:
    """A cluster and an error, as an answer gets them."""
    p, bandwidth, memory, latency, error = cluster
    told = (BITS, BLOCKS, WAYS, error)
    network = {"network": EmulatedNetwork(latency, bandwidth)}
    return trials.Case(step, p, CHOICES, (memory,), told, MOST, network)


PRACTICE = case(next(iter(SLOW)))


def _require(answer: Answer, clusters: dict[Cluster, trials.Choice], hint: str) -> None:
    for cluster, best in clusters.items():
        p, bandwidth, memory, latency, limit = cluster
        where = (
            f"{NUMBERS:,} numbers, {plural(p, 'rank')}, links of {bandwidth:g} and memory of {memory:g} bytes/s, "
            f"{latency:g} s per message, an error of at most {limit:g}"
        )
        the_case = case(cluster)
        tried = the_case.tried(answer, the_case.job, [best])
        taken, off = trials.require_possible(
            where,
            tried,
            (4, 64, "parts"),
            f"Possible are {BITS} bits with one of {BLOCKS} and one of {WAYS}, and {FP32!r}.",
        )
        require(
            off <= limit,
            f"{where}: {tried.choice!r} is off by {off:.3g}. What does measure say of its error?",
        )
        least = tried.probed[0][0]
        require_near_best(where, tried.choice, taken * 1e3, least * 1e3, "ms", hint)


@CHOOSE.check("on slow links", points=3)
def check_slow(answer: Answer) -> None:
    """Where bytes count."""
    _require(
        answer,
        SLOW,
        "How few bits does the error allow, how large a block, and how many bytes does each way send with them?",
    )


@CHOOSE.check("with few ranks, or long messages", points=2)
def check_few(answer: Answer) -> None:
    """Where the number of messages counts."""
    _require(
        answer,
        FEW,
        "How many messages does each way wait for, one after the other? Was the other way measured as well?",
    )


@CHOOSE.check("where compression may lose", points=3)
def check_fast(answer: Answer) -> None:
    """Where memory counts, or the error."""
    _require(
        answer,
        FAST,
        "What does compressing itself take, and what does fp32's ring take without it?",
    )
