"""Traces of steps that send by priority, or should: which is broken, and how."""

from __future__ import annotations

from functools import cache
from random import Random

from dtcourse.course.judging import Answer, Exercise, require_diagnoses
from dtcourse.plural import plural

DIAGNOSE = Exercise(
    "diagnose_schedule",
    lesson="13",
    title="Which run is broken, and how?",
    takes=("diagnose_schedule",),
    target="15 of 15 runs, of 3 to 5 ranks and 4 to 7 layers",
)

Diagnosis = tuple[str, int | None]
Sent = list[tuple[int, float, float]]  # layer, begun, arrived
Case = tuple[tuple[list[float], list[Sent], list[list[float]]], Diagnosis]
# Ranks, layers, slices per layer, forward, backward, all-reduce of a layer.
SIZES = ((3, 4, 3, 1.0, 2.0, 3.3), (4, 5, 2, 0.7, 1.1, 2.6), (5, 7, 4, 0.4, 1.3, 1.9))


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


@cache
def cases() -> dict[str, list[Case]]:
    """Three runs of each kind, always the same ones."""
    found: dict[str, list[Case]] = {}
    for ranks, layers, parts, f, b, c in SIZES:
        draw = Random(ranks)
        durations = [b * draw.uniform(0.9, 1.1) for _ in range(layers)]
        ready = [sum(durations[layer:]) for layer in range(layers)]
        for name, which in (
            ("healthy", None),
            ("waits for all", None),
            ("first in, first out", None),
            ("too early", draw.randrange(1, layers)),
            ("another order", draw.randrange(ranks)),
        ):
            sent = [_sent(ready, parts, c, name == "first in, first out") for _ in range(ranks)]
            if name == "another order":
                assert which is not None
                # The slices of two layers change places: as long as they are, no time tells.
                order = [layer for layer, _, _ in sent[which]]
                first = order.index(layers - 2)
                last = len(order) - 1 - order[::-1].index(layers - 1)
                order[first], order[last] = order[last], order[first]
                sent[which] = [
                    (layer, begun, arrived)
                    for layer, (_, begun, arrived) in zip(order, sent[which], strict=True)
                ]
            early = which if name == "too early" and which is not None else -1
            wait = "all" if name == "waits for all" else "own"
            forward = [
                _forward(one, ready[0], f, wait, early if rank == ranks - 1 else -1)
                for rank, one in enumerate(sent)
            ]
            found.setdefault(name, []).append(((ready, sent, forward), (name, which)))
    return found


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_diagnoses(
        answer,
        cases()[kind] + cases()["healthy"],
        describe=lambda ready, sent, _: (
            f"A run of {plural(len(sent), 'rank')} and {plural(len(ready), 'layer')}"
        ),
        hint=hint,
        healthy="What of this run would you change? Slices that are not ready cannot go first.",
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
