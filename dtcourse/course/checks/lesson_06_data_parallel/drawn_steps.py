"""Steps of data parallelism as they are drawn: each of random size, with a mistake or none, for traced_steps to run."""

from __future__ import annotations

import random

from dtcourse.course.checks.lesson_06_data_parallel.traced_steps import (
    BYTES,
    LATENCY,
    MS,
    Step,
    Trace,
    run,
)


def through(sizes: list[int], forward: float, layer: float) -> float:
    """Ms of a step: of so many layers per bucket, `forward` ms of each and `layer` ms for its bytes."""
    ready = end = forward * sum(sizes)
    for size in sizes:
        ready += 2 * forward * size
        end = max(end, ready) + LATENCY + layer * size
    return end


def pairs(sizes: list[int]) -> list[int]:
    """Sizes of buckets that hold two neighbours each."""
    return [sum(sizes[i : i + 2]) for i in range(0, len(sizes), 2)]


def _sizes(kind: str, bytes_count: bool) -> tuple[list[int], float, int]:
    """Layers per bucket, ms of a layer's forward, and its blocks.

    With two neighbours in a bucket each the step would be shorter by a sixth or more where the mistake is that buckets
    are small, and no shorter elsewhere.
    """
    while True:
        sizes = [random.randint(1, 3) for _ in range(random.randint(4, 6))]
        if kind == "order":
            sizes[2] = sizes[1]  # or the ring would see that two messages differ
        forward = 0.4 * 30 ** random.random()
        layer = forward * (random.uniform(2.5, 4) if bytes_count else random.uniform(0.2, 1.2))
        blocks = max(1, round(layer / BYTES))
        now, larger = (through(one, forward, blocks * BYTES) for one in (sizes, pairs(sizes)))
        fits = larger <= 5 / 6 * now if kind == "small" else larger >= now
        if fits and len(set(sizes)) > 1:
            return sizes, forward, blocks


KINDS = ("twice", "undivided", "order", "waits", "blocked", "small")
EACH = 4  # steps of a kind, and as many healthy ones beside them
Case = tuple[Trace, tuple[str, int | None]]
_run: dict[str, list[Case]] = {}  # by kind: what no answer has seen yet


def cases(kind: str) -> list[Case]:
    """Healthy steps and steps of this kind, which no other check has been given, with their diagnoses.

    To launch ranks takes longer than to run a step: where there are none left, steps of all kinds are run at once, half
    of the kinds on 3 ranks and half on 4. The kinds of one launch share its healthy steps.
    """
    if kind not in _run:
        shuffled = random.sample(KINDS, len(KINDS))
        for ranks, kinds in ((3, shuffled[::2]), (4, shuffled[1::2])):
            steps = [drawn(one, turn, ranks) for one in ("healthy", *kinds) for turn in range(EACH)]
            found = [
                (trace, (step.kind, step.where))
                for trace, step in zip(run(steps, ranks), steps, strict=True)
            ]
            for at, one in enumerate(kinds, 1):
                _run[one] = [*found[:EACH], *found[at * EACH : (at + 1) * EACH]]
    return _run.pop(kind)


def drawn(kind: str, turn: int, ranks: int) -> Step:
    """A step of random size with a mistake, or "healthy".

    turn: 0 to 3. In odd ones two layers of a bucket have changed places, which delays nothing, and a rank pauses. In
          2 and 3 the network cannot hide the bytes, however they are cut.
    """
    sizes, forward, blocks = _sizes(kind, turn >= 2)
    # Of four turns one at least is not rank 0's: who always names rank 0 is wrong there.
    number, odd = sum(sizes), random.randrange(1 if turn == 3 else 0, ranks)
    place = list(range(number))  # of layers in backward, as numbers of places in the buckets
    if turn % 2:
        first = sum(sizes[: random.choice([i for i, size in enumerate(sizes) if size > 1])])
        place[first], place[first + 1] = place[first + 1], place[first]
    where = None if kind in ("healthy", "small") else odd
    if kind == "blocked":
        early = random.randrange(sizes[0])
        where = number - 1 - place[early]
        # Backward comes to it after two buckets more, or later.
        place.insert(random.randint(sum(sizes[:3]), number - 1), place.pop(early))
    names = iter(range(number - 1, -1, -1))
    buckets = [[next(names) for _ in range(size)] for size in sizes]
    order = [number - 1 - one for one in reversed(place)]
    seconds = [
        [random.uniform(0.97, 1.0) * forward * MS for _ in range(number)] for _ in range(ranks)
    ]
    gradients = [[random.gauss(0.5, 1.0) for _ in range(number)] for _ in range(ranks)]
    standing = random.uniform(0.2, 0.6) * forward * MS if turn % 2 else 0.0
    pause = (random.randrange(ranks), order[number // 2], standing)
    return Step(kind, where, blocks, buckets, order, seconds, gradients, pause)
