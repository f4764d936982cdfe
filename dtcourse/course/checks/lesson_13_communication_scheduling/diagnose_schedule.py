"""Traces of steps that send by priority, or should, drawn anew each time: which is broken, and how."""

from __future__ import annotations

import random

from dtcourse.course.judging import Answer, Exercise, require_kind
from dtcourse.plural import plural

DIAGNOSE = Exercise(
    "diagnose_schedule",
    lesson="13",
    title="Which run is broken, and how?",
    takes=("diagnose_schedule",),
    target="24 of 24 runs of 3 to 5 ranks and 4 to 7 layers, drawn anew each time",
)

Diagnosis = tuple[str, int | None]
Sent = list[tuple[int, float, float]]  # layer, begun, arrived
Case = tuple[tuple[list[float], list[Sent], list[list[float]]], Diagnosis]
EACH = 3  # runs of a kind, and as many healthy ones beside them
CLEAR = 1e-3  # seconds: what is wrong is wrong by more


def _sent(ready: list[float], parts: int, seconds: float, fifo: bool) -> Sent:
    """What the network carries, one slice after the other."""
    left = [layer for layer in reversed(range(len(ready))) for _ in range(parts)]
    now, sent = 0.0, []
    while left:
        now = max(now, min(ready[layer] for layer in left))
        there = [layer for layer in left if ready[layer] <= now]
        layer = max(there) if fifo else min(there)
        left.remove(layer)
        sent.append((layer, now, now + seconds / parts))
        now += seconds / parts
    return sent


def _forward(sent: Sent, backward_end: float, f: float, wait: str, early: int = -1) -> list[float]:
    """When each layer's forward begins. early: a layer that does not wait."""
    there = {layer: arrived for layer, _, arrived in sent}
    now = max(backward_end, *there.values()) if wait == "all" else backward_end
    begins = []
    for layer in sorted(there):
        now = now if layer == early else max(now, there[layer])
        begins.append(now)
        now += f
    return begins


def draw(kind: str, turn: int) -> Case:
    """A run of that kind in which what is wrong can be seen: drawn until it can.

    turn: of three, one has it on the first rank, one in the middle, one on the last
    """
    while True:
        ranks, layers, parts = random.randint(3, 5), random.randint(4, 7), random.randint(2, 4)
        b = random.uniform(1.0, 2.0)
        f, c = b * random.uniform(0.3, 0.7), b * random.uniform(1.4, 2.4)
        durations = [b * random.uniform(0.9, 1.1) for _ in range(layers)]
        ready = [sum(durations[layer:]) for layer in range(layers)]
        here = (0, random.randrange(1, ranks - 1), ranks - 1)[turn]
        layer = random.randrange(1, layers)
        sent = [_sent(ready, parts, c, kind == "first in, first out") for _ in range(ranks)]
        order, there = [one for one, *_ in sent[0]], {one: end for one, _, end in sent[0]}
        by_priority, by_arrival = (
            [one for one, *_ in _sent(ready, parts, c, fifo)] for fifo in (False, True)
        )
        if kind == "another order":
            sent[here] = _exchanged(sent[here], layers)
        early, wait = (layer, "own") if kind == "too early" else (-1, "own")
        wait = "all" if kind == "waits for all" else wait
        forward = [
            _forward(one, ready[0], f, wait, early if rank == here else -1)
            for rank, one in enumerate(sent)
        ]
        seen = {
            "too early": forward[here][layer] < there[layer] - CLEAR,
            "waits for all": forward[0][0] > max(ready[0], there[0]) + CLEAR,
            "another order": [one for one, *_ in sent[here]] != order,
        }
        if by_priority != by_arrival and seen.get(kind, True):
            where = {"too early": layer, "another order": here}.get(kind)
            return (ready, sent, forward), (kind, where)


def _exchanged(sent: Sent, layers: int) -> Sent:
    """The slices of two layers change places: they are equally long, so that no time tells."""
    order = [layer for layer, _, _ in sent]
    first, last = order.index(layers - 2), len(order) - 1 - order[::-1].index(layers - 1)
    order[first], order[last] = order[last], order[first]
    return [(layer, begun, end) for layer, (_, begun, end) in zip(order, sent, strict=True)]


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_kind(
        answer,
        kind,
        hint,
        drawn=draw,
        each=EACH,
        describe=lambda ready, sent, _: (
            f"A run of {plural(len(sent), 'rank')} and {plural(len(ready), 'layer')}"
        ),
        healthy="What of this run would you change? Slices that are not ready cannot go first, and a gradient is there "
        "when its last slice is.",
        example=("too early", 2),
    )


@DIAGNOSE.check("a wait for everything", points=2)
def check_all(answer: Answer) -> None:
    """Priority that wins nothing."""
    _require(
        answer,
        "waits for all",
        "When was the first layer's gradient there, and when did its forward begin?",
    )


@DIAGNOSE.check("first in, first out", points=2)
def check_fifo(answer: Answer) -> None:
    """A wait in the right place that wins nothing."""
    _require(
        answer,
        "first in, first out",
        "When a slice began to travel, was one of an earlier layer ready?",
    )


@DIAGNOSE.check("a forward that begins too early", points=3)
def check_early(answer: Answer) -> None:
    """On one rank, and in which layer."""
    _require(
        answer,
        "too early",
        "Compare each layer's begin with the arrival of its own last slice, on every rank.",
    )


@DIAGNOSE.check("a rank with an order of its own", points=3)
def check_order(answer: Answer) -> None:
    """And which."""
    _require(
        answer,
        "another order",
        "All times are as they should be. What does the n-th message of one rank meet on the others?",
    )
