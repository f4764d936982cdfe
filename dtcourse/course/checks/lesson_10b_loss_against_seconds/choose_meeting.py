"""Whom ranks meet, and how often: the quickest step that keeps them close enough."""

from __future__ import annotations

import math

from dtcourse.course.judging import Answer, Exercise, call_each, require, require_near_best

CHOOSE = Exercise(
    "choose_meeting",
    lesson="10b",
    title="Choose whom to meet, and how often",
    takes=("choose_meeting",),
    target="a step in at most 1.01 times the best one's time, within the limit of the distance, on 9 clusters",
)

# ranks, seconds of computing, latency, seconds for a model's bytes, limit of the squared distance, longest period
Cluster = tuple[int, float, float, float, float, int]
STRICT: tuple[Cluster, ...] = (
    (8, 10e-3, 20e-6, 80e-3, 1.0, 64),
    (16, 50e-3, 5e-3, 20e-3, 1.5, 64),
    (4, 5e-3, 2e-3, 1e-3, 0.9, 64),
)
LOOSE: tuple[Cluster, ...] = (
    (16, 12e-3, 50e-6, 160e-3, 40.0, 256),
    (8, 12e-3, 1e-3, 80e-3, 20.0, 256),
    (32, 50e-3, 10e-3, 4e-3, 60.0, 256),
)
BETWEEN: tuple[Cluster, ...] = (
    (16, 12e-3, 10e-6, 100e-3, 3.0, 64),
    (16, 12e-3, 10e-6, 100e-3, 3.3, 64),
    (64, 20e-3, 20e-6, 60e-3, 500.0, 16),
)
GRAPHS = ("all", "ring", "exponential", "one peer")


def per_step(graph: str, p: int) -> float:
    """The squared distance just before a meeting, for each step of a period: sum over k of |W_k - J|^2 / p.

    By eigenvalues, since all graphs are the same seen from every rank (circulant matrices).
    """
    hops = [2**k for k in range(p.bit_length() - 1)]
    waves = [2 * math.pi * m / p for m in range(1, p)]  # but for the mean
    if graph == "all":
        return 1 - 1 / p
    if graph == "one peer":  # after k rounds each number is shared by 2^k ranks
        return sum(2.0**-k - 1 / p for k in range(len(hops)))
    near = (0, 1, -1) if graph == "ring" else (0, *hops)
    powers = [
        abs(sum(complex(math.cos(w * hop), math.sin(w * hop)) for hop in near) / len(near)) ** 2
        for w in waves
    ]
    return sum(1 / (1 - power) for power in powers) / p


def seconds(cluster: Cluster, graph: str, period: int) -> float:
    """Of a step, as the exercise counts it."""
    p, compute, latency, transfer, _, _ = cluster
    if graph == "all":
        meeting = 2 * (p - 1) * (latency + transfer / p)
    else:
        degree = {"ring": 2, "exponential": p.bit_length() - 1, "one peer": 1}[graph]
        meeting = degree * (latency + transfer)
    return compute + meeting / period


def best(cluster: Cluster) -> tuple[float, str, int]:
    """The shortest time, and its choice."""
    p, *_, limit, most = cluster
    allowed = [(g, H) for g in GRAPHS for H in range(1, most + 1) if H * per_step(g, p) <= limit]
    return min((seconds(cluster, *choice), *choice) for choice in allowed)


def _require(answer: Answer, clusters: tuple[Cluster, ...], hint: str) -> None:
    for cluster, got in zip(clusters, call_each(answer, clusters), strict=True):
        p, compute, latency, transfer, limit, most = cluster
        where = (
            f"{p} ranks, {compute:g} s of computing, latency {latency:g} s, {transfer:g} s for a model, squared "
            f"distance at most {limit:g}, periods to {most}"
        )
        right = isinstance(got, (list, tuple)) and len(got) == 2
        right = right and got[0] in GRAPHS and type(got[1]) is int and 1 <= got[1] <= most
        require(right, f"{where}: a choice is (graph, period), such as ('ring', 4); got {got!r}.")
        graph, period = got
        apart = period * per_step(graph, p)
        require(
            apart <= limit,
            f"{where}: {tuple(got)!r} lets the squared distance grow to {apart:.3g}. What is left of a step's noise "
            "after the next meeting, and the one after it?",
        )
        taken, (least, *_) = seconds(cluster, *got), best(cluster)
        require_near_best(where, got, taken * 1e3, least * 1e3, "ms per step", hint)


@CHOOSE.check("where ranks must stay close", points=3)
def check_strict(answer: Answer) -> None:
    """A meeting in each step, nearly."""
    _require(
        answer,
        STRICT,
        "Which graphs are within the limit at all, and what does a meeting on each of them cost?",
    )


@CHOOSE.check("where they may go far", points=2)
def check_loose(answer: Answer) -> None:
    """A long period."""
    _require(answer, LOOSE, "How long may the period be, and which graph sends the least in a meeting?")  # fmt: skip


@CHOOSE.check("between the two", points=3)
def check_between(answer: Answer) -> None:
    """Where a whole step more or less of a period decides."""
    _require(answer, BETWEEN, "Have you compared all graphs, each with its longest period?")
