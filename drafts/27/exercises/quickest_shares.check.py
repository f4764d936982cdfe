"""Whole shares where a rank has a cost per piece, and a piece has a limit: held to the quickest that there is."""

from __future__ import annotations

import heapq
import math
import random
from typing import Any

from dtcourse.course.judging import Answer, Exercise, call_each, require

SHARES = Exercise(
    "quickest_shares",
    lesson="27",
    title="The quickest shares",
    takes=("quickest_shares",),
    target="on 80 clusters of 2 to 8 ranks, drawn anew each time, no division of the samples is quicker",
    forbidden=("dtcourse.heterogeneous", "dtcourse.planner"),
)

# Samples; of each rank: seconds of a piece, of a sample in it, and samples that a piece may have.
Cluster = tuple[int, list[float], list[float], list[int]]


def seconds(cluster: Cluster, rank: int, samples: int) -> float:
    """Of a rank with so many samples."""
    _, fixed, each, limits = cluster
    return math.ceil(samples / limits[rank]) * fixed[rank] + samples * each[rank]


def slowest(cluster: Cluster, shares: list[int]) -> float:
    """Seconds of the rank that ends last."""
    return max(seconds(cluster, rank, samples) for rank, samples in enumerate(shares))


def best(cluster: Cluster) -> float:
    """The least that the slowest rank takes: sample by sample, each to the rank that has done it soonest.

    That is the least of all divisions, as no rank is quicker with one sample more.
    """
    total, fixed, *_ = cluster
    given = [0] * len(fixed)
    queue = [(seconds(cluster, rank, 1), rank) for rank in range(len(fixed))]
    heapq.heapify(queue)
    for _ in range(total):
        _, rank = heapq.heappop(queue)
        given[rank] += 1
        heapq.heappush(queue, (seconds(cluster, rank, given[rank] + 1), rank))
    return slowest(cluster, given)


def drawn(kind: str) -> Cluster:
    """kind: "samples": nothing is fixed, and all fits; "fixed": all fits; "pieces": little fits."""
    size = random.randint(2, 8)
    each = [1e-3 * random.choice([1, 1, random.uniform(1, 4), random.uniform(4, 12)]) for _ in range(size)]
    total = random.randint(size, 12 * size)
    fixed, limits = [0.0] * size, [total] * size
    if kind != "samples":
        # For some ranks as much as a few samples, for others as much as most of the batch.
        fixed = [random.choice([0.5, 2, total / size, total]) * random.uniform(0.5, 1.5) * 1e-3 for _ in each]
    if kind == "pieces":
        limits = [random.randint(1, max(2, total // size)) for _ in each]
    return total, fixed, each, limits


def _clusters(kind: str, num: int) -> list[Cluster]:
    """Among them one that has less samples than ranks, and one of two ranks."""
    found = [drawn(kind) for _ in range(num - 1)]
    _, fixed, each, limits = max(found, key=lambda one: len(one[1]))
    few = max(1, len(each) - 2)
    return [*found, (few, fixed, each, [min(limit, few) for limit in limits])]


def _require(answer: Answer, clusters: list[Cluster], hint: str) -> None:
    said = call_each(answer, clusters, shuffled=True, timeout=float(len(clusters)))
    for cluster, got in zip(clusters, said, strict=True):
        total, fixed, each, limits = cluster
        where = (
            f"{total} samples; ms per piece {_ms(fixed)}, per sample {_ms(each)}, samples in a piece at most {limits}"
        )
        right = isinstance(got, (list, tuple)) and len(got) == len(each)
        require(
            right and all(type(one) is int and one >= 0 for one in got),
            f"{where}: shares are a list of {len(each)} whole numbers, 0 or more; got {got!r}.",
        )
        require(sum(got) == total, f"{where}: {list(got)} are {sum(got)} samples together. Who has the others?")
        taken, least = slowest(cluster, list(got)), best(cluster)
        require(
            taken <= least * (1 + 1e-9),
            f"{where}: {list(got)} takes {1e3 * taken:.5g} ms, and {1e3 * least:.5g} ms is possible. {hint}",
        )


def _ms(each: list[float]) -> Any:
    return [round(1e3 * one, 2) for one in each]


@SHARES.check("where samples are all that costs", points=2)
def check_samples(answer: Answer) -> None:
    """What is left over after rounding costs more on one rank than on another."""
    _require(
        answer,
        _clusters("samples", 25),
        "When would each rank be done if it got one sample more, and who is done first then?",
    )


@SHARES.check("where a pass has its price", points=3)
def check_fixed(answer: Answer) -> None:
    """Some ranks are better left out."""
    _require(
        answer,
        _clusters("fixed", 25),
        "Until when is a rank busy that gets a single sample? Should it get one?",
    )


@SHARES.check("where not all fits at once", points=3)
def check_pieces(answer: Answer) -> None:
    """A sample more may cost a whole piece."""
    _require(
        answer,
        _clusters("pieces", 30),
        "A limit forbids nothing here. What does the first sample of another piece cost, and what do those after it?",
    )
