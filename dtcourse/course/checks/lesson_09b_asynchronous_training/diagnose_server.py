"""Logs of a server with backup workers: which is broken, and how."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from dtcourse.course.judging import Answer, Exercise, require_diagnoses
from dtcourse.plural import plural

DIAGNOSE = Exercise(
    "diagnose_server",
    lesson="09b",
    title="Which server is broken, and how?",
    takes=("diagnose_server",),
    target="12 of 12 logs of 3 to 6 workers, drawn anew for each run",
)

Log = list[tuple[str, Any]]
Diagnosis = tuple[str, int | None]
Case = tuple[Log, list[float], list[float], float, int, int]
LATENESS = (1, 2, 3)  # updates by which the wrong worker is late: another one in each log of a kind
RATE = 0.1


def _log(
    chance: random.Random, p: int, backups: int, kind: str, culprit: int, lateness: int
) -> Case:
    """What a server does with gradients in an order by chance, for 12 updates.

    The culprit is late, by this number of updates or more, and so dropped where all is right. Where late gradients are
    applied, it is late by exactly so many: a reader who forgives one update misses the first of the three logs.
    """
    wanted = p - backups
    log: Log = [("pull", w) for w in range(p)]
    has, here, gradients, x, computing = [0] * p, [], [], [1.0], set(range(p))
    held: dict[int, float] = {}
    late, blind, has_pushed = kind == "late gradient applied", kind == "never pulls", False
    while len(x) <= 12:
        behind = len(x) - 1 - has[culprit]
        ready = sorted(w for w in computing if w != culprit or behind >= lateness or blind)
        w = culprit if late and culprit in ready else chance.choice(ready)
        computing.discard(w)
        g = chance.gauss(0.5, 1.0)
        gradients.append(g)
        log.append(("push", w))
        fresh = has[w] == len(x) - 1
        taken_for_fresh = w == culprit and (late or (blind and has_pushed))
        has_pushed |= w == culprit
        if not (fresh or taken_for_fresh):
            log.append(("drop", w))
            if not (blind and w == culprit):
                log.append(("pull", w))
                has[w] = len(x) - 1
            computing.add(w)
            continue
        held[w] = g
        here.append(w)
        if len(here) == wanted:
            divisor = p if kind == "divided by all" else wanted
            x.append(x[-1] - RATE * sum(held[w] for w in here) / divisor)
            log.append(("apply", tuple(sorted(here))))
            for w in sorted(here):
                if not (blind and w == culprit):
                    log.append(("pull", w))
                    has[w] = len(x) - 1
                computing.add(w)
            here = []
    return log, gradients, x, RATE, p, wanted


@cache
def cases() -> dict[str, list[tuple[Case, Diagnosis]]]:
    """Three logs of each kind, drawn anew for each run of the checks."""
    chance, found = random.Random(), dict[str, list[tuple[Case, Diagnosis]]]()
    for lateness in LATENESS:
        p = chance.randint(3, 6)
        backups, culprit = chance.randint(1, p - 2), chance.randrange(p)
        for kind in ("healthy", "late gradient applied", "never pulls", "divided by all"):
            case = _log(chance, p, backups, kind, culprit, lateness)
            while case[0].count(("push", culprit)) < 2:  # its second push is what gives it away
                case = _log(chance, p, backups, kind, culprit, lateness)
            named = culprit if kind in ("late gradient applied", "never pulls") else None
            found.setdefault(kind, []).append((case, (kind, named)))
    return found


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_diagnoses(
        answer,
        cases()[kind] + cases()["healthy"],
        describe=lambda _log, _gradients, _x, _lr, p, wanted: (
            f"A server of {plural(p, 'worker')} that waits for {wanted}"
        ),
        hint=hint,
        healthy="All is right there: each gradient that is applied is computed from the newest version, and late ones "
        "are dropped.",
        example=("never pulls", 2),
        shuffled=True,
    )


@DIAGNOSE.check("a late gradient is applied", points=3)
def check_late(answer: Answer) -> None:
    """Whose."""
    _require(
        answer,
        "late gradient applied",
        "How many updates lie between a worker's pull and the update that its gradient is in?",
    )


@DIAGNOSE.check("a worker never pulls", points=2)
def check_blind(answer: Answer) -> None:
    """Which."""
    _require(answer, "never pulls", "What lies between two pushes of one worker?")


@DIAGNOSE.check("a mean over workers that are not in it", points=3)
def check_mean(answer: Answer) -> None:
    """The log is right, and the parameter is not."""
    _require(
        answer,
        "divided by all",
        "How far does the parameter move in an update, and what does that make of its gradients?",
    )
