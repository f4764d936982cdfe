"""Messages of a step's two all-reduces, drawn anew each time: what makes them slow, and where?"""

from __future__ import annotations

import random
from typing import Any

from dtcourse.course.checks.lesson_04b_choosing_an_all_reduce.traces import (
    ROUTES,
    Message,
    Network,
)
from dtcourse.course.judging import Answer, Exercise, require_diagnoses

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
Given = tuple[list[Call], float, float, float]

HEALTHY = (
    "Which times differ only by the 2 % that every message is off by, which messages only waited for a port or for "
    "another message, and is any other route more than a fifth faster?"
)


def drawn(kind: str, turn: int) -> tuple[Given, Diagnosis]:
    """A short and a long all-reduce of one job with one thing wrong, and what that is.

    turn: 0 to EACH - 1: over all of them either call is the odd one, and the long one goes round a ring or not
    """
    while True:
        p = random.choice(RANKS)
        alpha, beta = 10 ** random.uniform(-5, -4), 10 ** random.uniform(-10.5, -9)
        gap = alpha * random.choice([0.1, 0.3, 0.6])
        told = Network(alpha, gap, beta)
        # In units of the message that takes as long for its bytes as for the rest of it.
        unit = (alpha + gap) / beta
        sizes = [
            int(unit * 10 ** random.uniform(*bounds)) // 256 * 256 + 256
            for bounds in ((-1.5, -0.5), (1.0, 1.7))
        ]
        times = [{name: told.seconds(name, p, n) for name in ROUTES} for n in sizes]
        best = [min(of, key=lambda name, of=of: of[name]) for of in times]
        # Both sizes have a fastest route by far, but for the long one, where the ring may be nearly as fast.
        if sorted(times[0].values())[1] < 1.1 * times[0][best[0]]:
            continue
        routes, odd = list(best), turn % 2
        near = times[1]["ring"] < 1.05 * times[1][best[1]]
        if kind != "route" and turn >= EACH // 2 and near:
            routes[1] = "ring"
        if kind == "route":
            if sorted(times[odd].values())[1] < 1.1 * times[odd][best[odd]]:
                continue
            routes[odd] = random.choice([name for name in ROUTES if name != best[odd]])
            # A fifth faster is the border: nothing is near it.
            if times[odd][routes[odd]] < 1.4 * times[odd][best[odd]]:
                continue
        if _longest(routes[0], sizes[0], p) * 5 > _shortest(routes[1], sizes[1], p):
            continue
        wrong, right = _fault(kind, odd, p, told, times[odd][routes[odd]], routes[odd], sizes[odd])
        if right[0] in ("link", "late"):
            # What is wrong makes the call longer: nobody looks for what does not matter.
            if wrong.seconds(routes[odd], p, sizes[odd]) < 1.15 * times[odd][routes[odd]]:
                continue
        calls = []
        for call, (n, name) in enumerate(zip(sizes, routes, strict=True)):
            whole = kind in ("latency", "bandwidth")
            network = wrong if call == odd or whole else _jittered(told)
            calls.append((n, network.trace(name, p, n)))
        if kind == "route":
            right = ("route", (odd, best[odd]))
        return (calls, alpha, gap, beta), right


def _longest(route: str, nbytes: int, p: int) -> float:
    """The longest message's bytes."""
    return max(n for kind, _, n in ROUTES[route](1, p, nbytes) if kind == "send")


def _shortest(route: str, nbytes: int, p: int) -> float:
    return min(n for kind, _, n in ROUTES[route](1, p, nbytes) if kind == "send")


def _jittered(network: Network, **what: Any) -> Network:
    return Network(**{**vars(network), "jitter": JITTER, **what})


def _fault(
    kind: str, odd: int, p: int, told: Network, seconds: float, route: str, nbytes: int
) -> tuple[Network, Diagnosis]:
    """The network with what is wrong, and the diagnosis."""
    if kind == "link":
        source, target, *_ = random.choice(told.trace(route, p, nbytes))
        longer = random.uniform(1.8, 3.0)
        return _jittered(told, slow=(source, target, longer)), ("link", (source, target))
    if kind == "late":
        rank = random.randrange(p)
        return _jittered(told, late=(rank, random.uniform(1.2, 2.0) * seconds)), ("late", rank)
    more = random.uniform(2.0, 3.0)
    if kind == "latency":
        return _jittered(told, alpha=more * told.alpha), ("latency", None)
    if kind == "bandwidth":
        return _jittered(told, beta=more * told.beta), ("bandwidth", None)
    return _jittered(told), ("healthy", None)


def _described(calls: list[Call], alpha: float, gap: float, beta: float) -> str:
    ranks = 1 + max(source for _, messages in calls for source, *_ in messages)
    sizes = " and ".join(f"{n:,}" for n, _ in calls)
    return f"All-reduces of {sizes} bytes on {ranks} ranks"


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_diagnoses(
        answer,
        [drawn(one, turn) for one in ("healthy", kind) for turn in range(EACH)],
        describe=_described,
        hint=hint,
        healthy=HEALTHY,
        example=("link", (2, 3)),
        shuffled=True,
    )


@DIAGNOSE.check("a route that is wrong for its size", points=2)
def check_route(answer: Answer) -> None:
    """Nothing is slow, and another route would be faster."""
    _require(
        answer,
        "route",
        "Every message takes what the network's numbers say. How long would each of the four routes take, for this "
        "call's bytes?",
    )


@DIAGNOSE.check("a slow link", points=2)
def check_link(answer: Answer) -> None:
    """One direction between two ranks; whoever waits for it is late, too."""
    _require(
        answer,
        "link",
        "Who sends a message late because another one came late, or because its port was busy, and which message is "
        "itself too long for its bytes?",
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
        "By how much is a long message too long, for each of its bytes, and is it one link, or all?",
    )
