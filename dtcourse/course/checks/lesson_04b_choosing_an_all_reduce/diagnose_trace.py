"""Messages of a step's two all-reduces, drawn anew each time: what makes them slow, and where?"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dtcourse.course.checks.lesson_04b_choosing_an_all_reduce.traces import (
    ROUTES,
    Message,
    Network,
    message_sizes,
)
from dtcourse.course.judging import Answer, Exercise, require_kind
from dtcourse.simulator import collective_cost as cost

DIAGNOSE = Exercise(
    "diagnose_trace",
    lesson="04b",
    title="What makes these all-reduces slow?",
    takes=("diagnose_trace",),
    target="40 of 40 pairs of all-reduces, on 4 to 16 ranks, drawn anew each time",
    forbidden=(
        "dtcourse.collectives.algorithms",
        "dtcourse.collectives.terms",
        "dtcourse.simulator",
        "dtcourse.course",
    ),
)

EACH = 4  # pairs of a kind, and as many healthy ones beside them
JITTER = 0.02
RANKS = (4, 8, 16)
Diagnosis = tuple[str, Any]
Call = tuple[int, list[Message]]
Given = tuple[list[Call], list[str], float, float, float]

HEALTHY = (
    "Which times differ only by the 2% that every message is off by, which messages only waited for a port or for "
    "another message, and is any other route more than a fifth faster?"
)
# What the simulator's formulas call the routes.
FORMULAS = dict(zip(ROUTES, ("naive", "ring", "tree", "halving_doubling"), strict=True))


def drawn(kind: str, turn: int) -> tuple[Given, Diagnosis]:
    """A short and a long all-reduce of one job with at most one thing wrong, and what that is.

    turn: 0 to EACH - 1. Either call is the odd one in half of them, and in half of them the short call goes through
          the root, where messages wait for a port, and the long one round the ring; unless a route is what is wrong
    """
    odd, waiting = turn % 2, turn >= EACH // 2
    while True:
        p = random.choice(RANKS)
        alpha, beta = 10 ** random.uniform(-5, -4), 10 ** random.uniform(-10.5, -9)
        gap = alpha * random.choice([0.1, 0.3, 0.6])
        told = Network(alpha, gap, beta)
        # Where halving and doubling is missing, the ring or the tree may be the fastest. In the last turn it is there,
        # so a ring is never quite the fastest.
        usable = random.sample(list(ROUTES), len(ROUTES))
        if turn < EACH - 1 and random.random() < 0.7:
            usable.remove("halving and doubling")
        sizes = _sizes(alpha, gap, beta)
        times = [seconds(told, p, n, usable) for n in sizes]
        routes = [min(of, key=of.__getitem__) for of in times]
        if waiting and kind != "route":
            if routes[0] != "root" or times[1]["ring"] > 1.05 * times[1][routes[1]]:
                continue
            routes[1] = "ring"
        best = list(routes)
        if kind == "route":
            # A fifth faster is the border: nothing is near it, and one route is the fastest by far.
            order = sorted(times[odd].values())
            far = [name for name in times[odd] if times[odd][name] > 1.4 * order[0]]
            if order[1] < 1.1 * order[0] or not far:
                continue
            routes[odd] = random.choice(far)
        # What a latency adds to a message is told from what a bandwidth adds by messages of different lengths.
        if max(message_sizes(routes[0], p, sizes[0])) * 5 > min(
            message_sizes(routes[1], p, sizes[1])
        ):
            continue
        wrong, right = _fault(kind, p, told, times[odd][routes[odd]], routes[odd], sizes[odd])
        # What is wrong makes the call longer: nobody looks for what does not matter.
        if kind in ("link", "late") and (
            wrong.seconds(routes[odd], p, sizes[odd]) < 1.15 * times[odd][routes[odd]]
        ):
            continue
        calls = []
        for call, (n, name) in enumerate(zip(sizes, routes, strict=True)):
            everywhere = kind in ("latency", "bandwidth")
            network = wrong if everywhere or call == odd else replace(told, jitter=JITTER)
            calls.append((n, network.trace(name, p, n)))
        return (calls, usable, alpha, gap, beta), (
            "route",
            (odd, best[odd]),
        ) if kind == "route" else right


def seconds(network: Network, p: int, n: int, routes: Sequence[str]) -> dict[str, float]:
    """Of each route, by its formula: blocks are not cut into chunks."""
    link = cost.Link(network.alpha, network.beta, gap=network.gap)
    paths = {name: cost.terms(FORMULAS[name], "all_reduce", n, p) for name in routes}
    return {name: path.seconds(link) for name, path in paths.items()}


def _sizes(alpha: float, gap: float, beta: float) -> list[int]:
    """Bytes of a short call and of a long one: far from a message that takes as long for its bytes as for the rest."""
    unit = (alpha + gap) / beta
    bounds = ((-1.5, -0.5), (1.0, 1.7))
    return [int(unit * 10 ** random.uniform(*each)) // 256 * 256 + 256 for each in bounds]


def _fault(
    kind: str, p: int, told: Network, seconds: float, route: str, nbytes: int
) -> tuple[Network, Diagnosis]:
    """The network with what is wrong, and the diagnosis. seconds: what the call takes without it."""
    shaken, more = replace(told, jitter=JITTER), random.uniform(2.0, 3.0)
    if kind == "link":
        source, target, *_ = random.choice(told.trace(route, p, nbytes))
        return replace(shaken, slow=(source, target, more)), ("link", (source, target))
    if kind == "late":
        rank = random.randrange(p)
        return replace(shaken, late=(rank, random.uniform(1.2, 2.0) * seconds)), ("late", rank)
    if kind == "latency":
        return replace(shaken, alpha=more * told.alpha), ("latency", None)
    if kind == "bandwidth":
        return replace(shaken, beta=more * told.beta), ("bandwidth", None)
    return shaken, ("healthy", None)


def _described(calls: list[Call], routes: list[str], alpha: float, gap: float, beta: float) -> str:
    ranks = 1 + max(source for _, messages in calls for source, *_ in messages)
    sizes = " and ".join(f"{n:,}" for n, _ in calls)
    return f"All-reduces of {sizes} bytes on {ranks} ranks"


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_kind(
        answer,
        kind,
        hint,
        drawn=drawn,
        each=EACH,
        describe=_described,
        healthy=HEALTHY,
        example=("link", (2, 3)),
    )


@DIAGNOSE.check("a route that is wrong for its size", points=2)
def check_route(answer: Answer) -> None:
    """Nothing is slow, and another route would be faster."""
    _require(
        answer,
        "route",
        "Every message takes what the network's numbers say. How long would each of the routes take, for the "
        "bytes of each call?",
    )


@DIAGNOSE.check("a slow link", points=2)
def check_link(answer: Answer) -> None:
    """One direction between two ranks; whoever waits for it is late, too."""
    _require(
        answer,
        "link",
        "Who sends a message late because another one came late, or because its port was busy? And which message is "
        "itself too long for its bytes, in which direction?",
    )


@DIAGNOSE.check("a rank that begins late", points=2)
def check_late(answer: Answer) -> None:
    """Its own messages are as fast as ever."""
    _require(
        answer,
        "late",
        "No message is too long. Which rank sends nothing though it has all that it needs?",
    )


@DIAGNOSE.check("a latency that has grown", points=2)
def check_latency(answer: Answer) -> None:
    """By the same time in short messages and in long ones."""
    _require(
        answer,
        "latency",
        "By how much is a short message too long, and by how much a long one? Is it one link, or all?",
    )


@DIAGNOSE.check("a bandwidth that has fallen", points=2)
def check_bandwidth(answer: Answer) -> None:
    """Short messages hardly show it."""
    _require(
        answer,
        "bandwidth",
        "By how much is a long message too long for each of its bytes, and by how much a short one? Is it one link, "
        "or all?",
    )
