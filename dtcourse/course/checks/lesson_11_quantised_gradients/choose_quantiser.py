"""Bits, block and way for a gradient, a cluster and an error."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, call_each, require

CHOOSE = Exercise(
    "choose_quantiser",
    lesson="11",
    title="Choose",
    takes=("choose_quantiser",),
    target="a mean in at most 1.01 times the best choice's time, within the error, on 8 clusters",
)

BITS, BLOCKS, WAYS = (8, 4, 2), (16, 64, 256, 1024), ("parts", "everyone")
FP32 = (32, None, "ring")
# numbers, p, bandwidth, latency, memory, error
Cluster = tuple[float, int, float, float, float, float]
SLOW: tuple[Cluster, ...] = (
    (25e6, 8, 125e6, 50e-6, 2e12, 0.016),
    (124e6, 16, 1.25e9, 50e-6, 2e12, 0.15),
    (25e6, 64, 1.25e9, 50e-6, 1e12, 0.75),
)
FEW: tuple[Cluster, ...] = (
    (25e6, 2, 1.25e9, 2e-3, 2e12, 0.016),
    (1e6, 3, 1.25e9, 500e-6, 2e12, 0.2),
)
FAST: tuple[Cluster, ...] = (
    (25e6, 8, 450e9, 5e-6, 3e11, 0.016),
    (124e6, 32, 50e9, 10e-6, 2e12, 0.001),
    (7e6, 4, 12.5e9, 20e-6, 1e11, 0.016),
)


@cache
def sample(seed: int) -> Tensor:
    """(8192,): numbers of very different sizes, as in a gradient."""
    make = torch.Generator().manual_seed(seed)
    sizes = torch.randn(8192 // 64, generator=make).exp().repeat_interleave(64)
    return torch.randn(8192, generator=make) * sizes


def seconds(cluster: Cluster, bits: int, block: int | None, way: str) -> float:
    """A mean's, as the exercise counts them."""
    n, p, bandwidth, latency, memory, _ = cluster
    if block is None:
        return 2 * (p - 1) * (latency + 4 * n / p / bandwidth)
    each = bits / 8 + 4 / block  # bytes per number
    if way == "everyone":
        return (p - 1) * (latency + each * n / bandwidth) + (1 + p) * 4 * n / memory
    return 2 * (p - 1) * (latency + each * n / p / bandwidth) + (3 + 1 / p) * 4 * n / memory


def error(x: Tensor, bits: int, block: int | None) -> float:
    """Relative, in the 2-norm, of the nearest codes with a scale per block."""
    if block is None:
        return 0.0
    rows = x.view(-1, block)
    scale = rows.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    return (((rows / scale).round() * scale - rows).norm() / rows.norm()).item()


def best(cluster: Cluster, x: Tensor) -> tuple[float, tuple[Any, ...]]:
    """The shortest time within the error, and its choice."""
    choices = [FP32, *((bits, block, way) for bits in BITS for block in BLOCKS for way in WAYS)]
    within = [one for one in choices if error(x, *one[:2]) <= cluster[-1]]
    return min(((seconds(cluster, *one), one) for one in within), key=lambda found: found[0])


def _require(answer: Answer, clusters: tuple[Cluster, ...], hint: str) -> None:
    samples = [sample(seed) for seed in range(len(clusters))]
    given = [(x, *cluster) for x, cluster in zip(samples, clusters, strict=True)]
    for cluster, x, got in zip(clusters, samples, call_each(answer, given), strict=True):
        n, p, bandwidth, latency, memory, limit = cluster
        where = (
            f"{n:g} numbers, {p} ranks, {bandwidth:g} bytes/s, {latency:g} s per message, memory of {memory:g} "
            f"bytes/s, an error of at most {limit:g}"
        )
        right = isinstance(got, (list, tuple)) and len(got) == 3
        right = right and (
            tuple(got) == FP32 or (got[0] in BITS and got[1] in BLOCKS and got[2] in WAYS)
        )
        require(right, f"{where}: a choice is such as (8, 64, 'parts'), or {FP32!r}; got {got!r}.")
        bits, block, way = got
        lost = error(x, bits, block)
        require(
            lost <= limit,
            f"{where}: {bits} bits in blocks of {block} are off by {lost:.3g} on this sample. Quantise the sample "
            "and look.",
        )
        taken, (least, _) = seconds(cluster, bits, block, way), best(cluster, x)
        require(
            taken <= 1.01 * least,
            f"{where}: {tuple(got)!r} takes {taken * 1e3:.4g} ms, and the best choice within the error "
            f"{least * 1e3:.4g} ms. {hint}",
        )


@CHOOSE.check("on slow links", points=3)
def check_slow(answer: Answer) -> None:
    """Where bytes count."""
    _require(
        answer,
        SLOW,
        "How many bytes is a number with its share of a scale, and how often does each way send it?",
    )


@CHOOSE.check("with few ranks", points=2)
def check_few(answer: Answer) -> None:
    """Where messages count."""
    _require(
        answer,
        FEW,
        "How many messages does each way wait for, and at which p do their bytes cross?",
    )


@CHOOSE.check("where compression may lose", points=3)
def check_fast(answer: Answer) -> None:
    """Where memory counts, or the error."""
    _require(
        answer,
        FAST,
        "What does compressing itself take, and what does fp32's ring take without it?",
    )
