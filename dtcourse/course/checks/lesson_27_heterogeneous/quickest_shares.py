"""Whole shares where a rank has a cost per piece, and one rank more costs all: held to the quickest that there is."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from itertools import combinations

from dtcourse.course.judging import Answer, Exercise, call_each, require
from dtcourse.plural import plural

SHARES = Exercise(
    "quickest_shares",
    lesson="27",
    title="The quickest shares",
    takes=("quickest_shares",),
    target="on 80 clusters of 2 to 8 ranks, drawn anew each time, no division of the samples is quicker",
    forbidden=("dtcourse.heterogeneous", "dtcourse.planner"),
)

# Samples; of each rank: seconds of a piece, of a sample in it, and samples that a piece may have; seconds of messages
# for each rank that takes part beside the first.
Cluster = tuple[int, list[float], list[float], list[int], float]
# Samples, fixed, each, join in ms, without limits: the best sets of one, two and three ranks are not each a part of the
# next. Ranks that leave one by one miss the best of the first, ranks that join one by one that of the second, and those
# that are the quickest with an equal share that of the third.
CROSSED = (
    (6, (8.0, 0.5, 0.5), (1.0, 3.0, 3.1), 5.0),
    (6, (8.0, 0.5, 0.5), (1.0, 3.0, 3.1), 3.0),
    (12, (0.0, 0.5, 8.5), (1.0, 4.0, 1.0), 1.0),
)


def crossed(total: int, fixed: Sequence[float], each: Sequence[float], join: float) -> Cluster:
    """One of them, in any order of the ranks, on any clock."""
    order, ms = random.sample(range(len(each)), len(each)), 1e-3 * 10 ** random.uniform(-0.5, 0.5)
    found = [[ms * one[rank] for rank in order] for one in (fixed, each)]
    return total, found[0], found[1], [total] * len(each), ms * join


def seconds(cluster: Cluster, rank: int, samples: int) -> float:
    """Of a rank's work with so many samples."""
    _, fixed, each, limits, _ = cluster
    return math.ceil(samples / limits[rank]) * fixed[rank] + samples * each[rank]


def step(cluster: Cluster, shares: Sequence[int]) -> float:
    """Seconds of the rank that ends last, and of the messages."""
    join, part = cluster[-1], [rank for rank, samples in enumerate(shares) if samples]
    return max(seconds(cluster, rank, shares[rank]) for rank in part) + join * (len(part) - 1)


def divided(cluster: Cluster, ranks: Sequence[int]) -> list[int]:
    """Among these ranks: sample by sample, each to the rank that has done it soonest.

    The slowest one's work is then the least of all divisions among them, as no rank is quicker with one sample more.
    """
    total, fixed, *_ = cluster
    given = [0] * len(fixed)
    queue = [(seconds(cluster, rank, 1), rank) for rank in ranks]
    heapq.heapify(queue)
    for _ in range(total):
        _, rank = queue[0]
        given[rank] += 1
        heapq.heapreplace(queue, (seconds(cluster, rank, given[rank] + 1), rank))
    return given


def best(cluster: Cluster) -> float:
    """The least that a step takes: over all sets of ranks that may take part."""
    ranks = range(len(cluster[1]))
    sets: list[Sequence[int]] = _sets(ranks) if cluster[-1] else [ranks]
    return min(step(cluster, divided(cluster, some)) for some in sets)


def _sets(ranks: Sequence[int]) -> list[Sequence[int]]:
    return [some for size in range(1, len(ranks) + 1) for some in combinations(ranks, size)]


def drawn(kind: str) -> Cluster:
    """kind: "fixed": all fits; "pieces": little fits; "join": the same, and one rank more costs all."""
    size = random.randint(2, 8)
    each = [
        1e-3 * random.choice([1, 1, random.uniform(1, 4), random.uniform(4, 12)])
        for _ in range(size)
    ]
    total = random.randint(size, 8 * size)
    # For some ranks as much as a few samples, for others as much as most of the batch.
    fixed = [
        random.choice([0.5, 2, total / size, total]) * random.uniform(0.5, 1.5) * 1e-3 for _ in each
    ]
    limits, join = [total] * size, 0.0
    if kind != "fixed":
        limits = [random.randint(1, max(2, total // size)) for _ in each]
    if kind == "join":
        join = total / size * 1e-3 * 10 ** random.uniform(-1.5, 0.3)
    # Often ranks are of two kinds alone: those of one kind are done with a sample at the same moment.
    if random.random() < 0.4:
        of = [random.randrange(2) for _ in range(size)]
        fixed, each = [fixed[kind] for kind in of], [each[kind] for kind in of]
        limits = [limits[kind] for kind in of]
    return total, fixed, each, limits, join


def _clusters(kind: str, num: int) -> list[Cluster]:
    """Among them one that has fewer samples than ranks."""
    found = [drawn(kind) for _ in range(num - 1)]
    _, fixed, each, limits, join = max(found, key=lambda one: len(one[1]))
    few = max(1, len(each) - 2)
    return [*found, (few, fixed, each, [min(limit, few) for limit in limits], join)]


def _require(answer: Answer, clusters: list[Cluster], hint: str) -> None:
    said = call_each(answer, clusters, shuffled=True, timeout=float(len(clusters)))
    for cluster, got in zip(clusters, said, strict=True):
        total, fixed, each, limits, join = cluster
        where = (
            f"{plural(total, 'sample')}; ms per piece {_ms(fixed)}, per sample {_ms(each)}, at most {limits} samples "
            f"in a piece, {1e3 * join:.3g} ms for each rank more"
        )
        right = isinstance(got, (list, tuple)) and len(got) == len(each)
        require(
            right and all(type(one) is int and one >= 0 for one in got),
            f"{where}: shares are a list of {len(each)} whole numbers (int), 0 or more; got {got!r}.",
        )
        require(
            sum(got) == total,
            f"{where}: {list(got)} are {plural(sum(got), 'sample')} together.",
        )
        taken, least = step(cluster, got), best(cluster)
        require(
            taken <= least * (1 + 1e-9),
            f"{where}: {list(got)} takes {1e3 * taken:.5g} ms, and {1e3 * least:.5g} ms is possible. {hint}",
        )


def _ms(each: list[float]) -> list[float]:
    return [round(1e3 * one, 2) for one in each]


@SHARES.check("where a pass has its price", points=2)
def check_fixed(answer: Answer) -> None:
    """Some ranks are better left out, though they cost nobody else anything."""
    _require(
        answer,
        _clusters("fixed", 25),
        "Until when is a rank busy that gets one sample more, or a single one? Who is done first then?",
    )


@SHARES.check("where not all fits at once", points=3)
def check_pieces(answer: Answer) -> None:
    """A sample more may cost a whole piece."""
    _require(
        answer,
        _clusters("pieces", 25),
        "A limit forbids nothing here. What does the first sample of another piece cost, and what do those after it?",
    )


@SHARES.check("where one rank more costs all", points=3)
def check_join(answer: Answer) -> None:
    """How many take part, and which ones, is to be found out."""
    _require(
        answer,
        [*_clusters("join", 30 - len(CROSSED)), *(crossed(*one) for one in CROSSED)],
        "What do all wait for longer if one rank more takes part? If so many ranks may, which ones, and are these the "
        "same for any number?",
    )
