"""Schedule, chunks and micro-batches for given times, latency and memory."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from dtcourse.course.judging import Answer, Exercise, call_each, require
from dtcourse.pipeline_parallel import schedules, zero_bubble
from dtcourse.pipeline_parallel.simulate import Memory, Simulation, Times, simulate
from dtcourse.plural import plural

CHOOSE = Exercise(
    "choose",
    lesson="18b",
    title="Choose",
    takes=("choose",),
    target="a step of at most 1.05 times the best that fits, on 8 clusters",
)

NAMES = ("1F1B", "ZB-H1", "ZB-H2", "interleaved", "ZB-V")
# samples, p, layers, overhead, per_sample, latency, limit. Each is won by one schedule, by 5 % or more (but the last of
# slow messages, where two are level): ZB-V and 1F1B; ZB-H2, ZB-H1 and either of these; ZB-H1, ZB-V and 1F1B.
FREE_MESSAGES = ((8, 4, 8, 0.0, 1e-4, 0.0, 10**6), (16, 2, 8, 3e-4, 1e-4, 0.0, 8))
SLOW_MESSAGES = (
    (32, 4, 8, 0.0, 1e-4, 1e-3, 10**6),
    (24, 4, 16, 3e-4, 1e-4, 1e-3, 48),
    (32, 2, 16, 2e-4, 1e-4, 2e-2, 10**6),
)
LITTLE_ROOM = (
    (8, 4, 16, 1e-4, 1e-4, 1e-4, 16),
    (8, 4, 8, 1e-5, 1e-4, 0.0, 8),
    (24, 4, 8, 1e-4, 1e-4, 0.0, 12),
)

Cluster = tuple[int, int, int, float, float, float, float]


def performed(cluster: Cluster, name: str, v: int, m: int) -> Simulation | None:
    """A choice's step; None where it is no choice."""
    samples, p, layers, overhead, per_sample, latency, limit = cluster
    if samples % m or layers % (p * v) or (name == "interleaved") != (v > 1 and name != "ZB-V"):
        return None
    if (name == "ZB-V") != (v == 2 and name != "interleaved") or (name == "interleaved" and m % p):
        return None
    make: Any = {
        "1F1B": schedules.one_f_one_b,
        "ZB-H1": zero_bubble.zb_h1,
        "ZB-H2": zero_bubble.zb_h2,
        "interleaved": lambda p, m: schedules.interleaved_1f1b(p, m, v),
        "ZB-V": zero_bubble.zb_v,
    }[name]
    work = samples // m * (layers // p)
    seconds, own = per_sample * work, v * overhead
    # A whole backward is one action, with one overhead; in halves each has its own.
    weight = seconds / 2 + (own if name.startswith("ZB") else 0.0)
    times = Times(own + seconds, own + seconds, weight, transfer=latency)
    return simulate(make(p, m), times, Memory(stored=work, limit=limit))


def _drawn(clusters: tuple[Cluster, ...]) -> tuple[Cluster, ...]:
    """Each in a unit of time of its own, in another order: who wins stays, and no number is one of the file's."""
    found = []
    for samples, p, layers, *seconds, limit in random.sample(clusters, len(clusters)):
        unit = random.uniform(0.4, 2.5)
        overhead, per_sample, latency = (float(f"{unit * s:.3g}") for s in seconds)
        found.append((samples, p, layers, overhead, per_sample, latency, limit))
    return tuple(found)


@cache
def best(cluster: Cluster) -> tuple[float, str, int, int]:
    """Of all choices that fit, the one with the shortest step."""
    samples, p, layers = cluster[:3]
    found = []
    for m in (m for m in range(1, samples + 1) if samples % m == 0):
        for v in range(1, layers // p + 1):
            for name in NAMES:
                one = performed(cluster, name, v, m)
                if one is not None and one.fits:
                    found.append((one.makespan, name, v, m))
    return min(found)


def _require(answer: Answer, clusters: tuple[Cluster, ...], hint: str) -> None:
    clusters = _drawn(clusters)
    for cluster, got in zip(clusters, call_each(answer, clusters), strict=True):
        samples, p, layers, overhead, per_sample, latency, limit = cluster
        where = (
            f"{plural(samples, 'sample')}, {p} ranks, {layers} layers, overhead {overhead:g} s, {per_sample:g} s "
            f"per sample and layer, latency {latency:g} s, room for {limit:g}"
        )
        right = isinstance(got, (list, tuple)) and len(got) == 3
        right = right and got[0] in NAMES and all(type(n) is int and n > 0 for n in got[1:])
        require(right, f"{where}: a choice is (name, v, m), such as ('1F1B', 1, 8); got {got!r}.")
        one = performed(cluster, *got)
        require(
            one is not None,
            f"{where}: there is no {got!r}. p v divides the layers, m the samples; interleaved has v from 2 on and "
            "multiples of p as m, ZB-V has v = 2, all others v = 1.",
        )
        assert one is not None
        require(
            one.fits,
            f"{where}: {tuple(got)!r} stores {max(one.peak_memory):g} samples times layers at once. Which "
            "schedules, and how many samples per micro-batch, stay within the room?",
        )
        seconds = best(cluster)[0]
        require(
            one.makespan <= 1.05 * seconds,
            f"{where}: {tuple(got)!r} takes {one.makespan:.4g} s, and the best choice takes {seconds:.4g} s. {hint}",
        )


@CHOOSE.check("with free messages", points=2)
def check_free(answer: Answer) -> None:
    """With and without a cost per action."""
    _require(
        answer,
        FREE_MESSAGES,
        "More micro-batches, chunks and halves make the bubble smaller. What does each action cost besides?",
    )


@CHOOSE.check("with slow messages", points=3)
def check_slow(answer: Answer) -> None:
    """A message as long as a forward."""
    _require(
        answer,
        SLOW_MESSAGES,
        "Each micro-batch and each chunk sends a message more. Who has something else to do while it travels?",
    )


@CHOOSE.check("with little room", points=3)
def check_room(answer: Answer) -> None:
    """Where not every schedule fits."""
    _require(
        answer,
        LITTLE_ROOM,
        "Smaller micro-batches take less room each, and some schedules store fewer of them. Have you compared all "
        "that fit, each with the overhead of all its chunks?",
    )
