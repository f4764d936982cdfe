"""Records of a balance that moves in each step, drawn anew each time: what is wrong, and where."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations
from typing import Any

from dtcourse.course.judging import Answer, Exercise, place, require_kind
from dtcourse.plural import plural

DIAGNOSE = Exercise(
    "diagnose_balance",
    lesson="27",
    title="Which balance is broken, and how?",
    takes=("diagnose_balance",),
    target="30 of 30 records of 3 to 5 ranks, drawn anew each time, and shuffled",
)

Diagnosis = tuple[str, Any]
Record = tuple[list[list[int]], list[list[float]]]  # shares, and seconds told: by step, by rank
EACH = 3  # records of a kind, and as many healthy ones beside them
CLEAR = 3  # steps in which each other explanation is off, at the least


def told_speeds(shares: list[int], seconds: list[float]) -> list[float]:
    """Samples per second of each rank, by what it told."""
    return [n / s for n, s in zip(shares, seconds, strict=True)]


def whole(total: int, speeds: list[float]) -> list[int]:
    """Proportions in whole samples: each is rounded up or down, the largest remainders up."""
    exact = [total * speed / sum(speeds) for speed in speeds]
    shares = [int(one) for one in exact]
    by_remainder = sorted(range(len(exact)), key=lambda rank: shares[rank] - exact[rank])
    for rank in by_remainder[: total - sum(shares)]:
        shares[rank] += 1
    return shares


def taken(diagnosis: Diagnosis, shares: list[list[int]], seconds: list[list[float]]) -> list[float]:
    """The speeds from which the next step's shares are made, by a balance with this fault. Of all steps so far."""
    kind, where = diagnosis
    known = [told_speeds(*one) for one in zip(shares, seconds, strict=True)]
    latest = list(known[-1])
    if kind == "stale":
        latest[where] = known[0][where]
    elif kind == "exchanged":
        r, s = where
        latest[r], latest[s] = latest[s], latest[r]
    elif kind == "behind":
        return known[-2] if len(known) > 1 else [1.0] * len(latest)
    elif kind == "not per sample":
        return [1 / one for one in seconds[-1]]
    return latest


def off(diagnosis: Diagnosis, record: Record, first: int = 1) -> int:
    """In how many steps, from this one on, the shares are not those of a balance with this fault."""
    shares, seconds = record
    total, found = sum(shares[0]), 0
    for t in range(first, len(shares)):
        speeds = taken(diagnosis, shares[:t], seconds[:t])
        exact = [total * speed / sum(speeds) for speed in speeds]
        found += any(abs(n - one) >= 1 for n, one in zip(shares[t], exact, strict=True))
    return found


def others(right: Diagnosis, ranks: int) -> Iterator[Diagnosis]:
    """All that could be said of the shares, but for what is right. Who waits has the shares of a healthy balance."""
    every: list[Diagnosis] = [("healthy", None), ("behind", None), ("not per sample", None)]
    every += [("stale", r) for r in range(ranks)]
    every += [("exchanged", pair) for pair in combinations(range(ranks), 2)]
    same = [right, ("healthy", None)] if right[0] == "waits" else [right]
    return (one for one in every if one not in same)


def recorded(diagnosis: Diagnosis, ranks: int) -> Record:
    """A run of such a balance."""
    kind, where = diagnosis
    steps, total = random.randint(8, 11), 40 * ranks + random.randint(0, 20)
    speeds = [random.uniform(0.4, 1.0) * 1e4 for _ in range(ranks)]
    # Whose speed changes: that of the rank which is not looked at any more, else anyone's.
    changes = where if kind == "stale" else random.randrange(ranks)
    change, factor = steps // 2, random.choice([0.5, 2.0])
    shares, seconds = [whole(total, [1.0] * ranks)], list[list[float]]()
    for t in range(steps):
        if t == change:
            speeds[changes] *= factor
        own = [
            n / speed * random.lognormvariate(0, 0.06)
            for n, speed in zip(shares[-1], speeds, strict=True)
        ]
        if kind == "waits":
            own[where] = max(own)
        seconds.append(own)
        if t < steps - 1:
            made = taken(diagnosis, shares, seconds)
            shares.append(whole(total, made))
    return shares, seconds


def drawn(kind: str, turn: int) -> tuple[Record, Diagnosis]:
    """A record of this kind, which no other diagnosis explains."""
    while True:
        ranks = random.randint(3, 5)
        rank = place(turn, 0, ranks - 1)
        # Not neighbours; without the first rank; without the last one.
        pair = (
            (0, random.randint(2, ranks - 1)),
            (random.randint(1, ranks - 2), ranks - 1),
            tuple(sorted(random.sample(range(ranks - 1), 2))),
        )[turn]
        where = {"waits": rank, "stale": rank, "exchanged": pair}.get(kind)
        right: Diagnosis = (kind, where)
        record = shares, seconds = recorded(right, ranks)
        # No share that rounding decides, and none at the edge of what is rounded.
        if off(right, record) or min(map(min, shares)) < 3:
            continue
        if any(off(one, record) < CLEAR for one in others(right, ranks)):
            continue
        # One of them looks healthy in its last step.
        hidden = turn == 2 and kind in ("exchanged", "behind")
        if hidden and off(("healthy", None), record, len(shares) - 1):
            continue
        # Who ends last in each step has the same figures as who tells so.
        last = [r for r in range(ranks) if all(each[r] == max(each) for each in seconds)]
        equal = sum(each.count(max(each)) > 1 for each in seconds)
        if kind != "waits" or (last == [rank] and equal >= CLEAR):
            return record, right


def _described(shares: list[list[int]], _seconds: Any) -> str:
    return f"A record of {plural(len(shares[0]), 'rank')} and {plural(len(shares), 'step')}"


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_kind(
        answer,
        kind,
        hint,
        drawn=drawn,
        each=EACH,
        describe=_described,
        healthy="Each step's shares are the proportions of the samples per second of the step before, rounded up or "
        "down, and each rank tells its own work.",
        example=("stale", 2),
    )


@DIAGNOSE.check("a rank that tells its waiting, too", points=2)
def check_waits(answer: Answer) -> None:
    """All shares follow from what was told."""
    _require(
        answer,
        "waits",
        "The shares are right for what was told. What does this rank tell in steps in which another one ends last?",
    )


@DIAGNOSE.check("a rank that is not looked at any more", points=2)
def check_stale(answer: Answer) -> None:
    """Until its speed changes, little is to be seen."""
    _require(
        answer,
        "stale",
        "From which of this rank's figures would its share follow in the second half of the run?",
    )


@DIAGNOSE.check("two ranks that are exchanged", points=2)
def check_exchanged(answer: Answer) -> None:
    """Each has the share of the other."""
    _require(answer, "exchanged", "Whose speed would explain the share of each rank?")


@DIAGNOSE.check("a balance that is a step behind", points=2)
def check_behind(answer: Answer) -> None:
    """What it takes was right a step ago."""
    _require(
        answer,
        "behind",
        "All shares may be those of a step before. Of which step's figures do they follow?",
    )


@DIAGNOSE.check("seconds that are not divided by samples", points=2)
def check_not_per_sample(answer: Answer) -> None:
    """It goes from one end to the other."""
    _require(
        answer,
        "not per sample",
        "When all ranks end at the same time, which shares follow in the next step, and which should?",
    )
