"""Logs of jobs that Slurm ended and started again: which is broken, and from which start on."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from dtcourse.course.judging import Answer, Exercise, call_each, require_diagnosis

DIAGNOSE = Exercise(
    "diagnose_job",
    lesson="26",
    title="Which job is broken, and since when?",
    takes=("diagnose_job",),
    target="16 of 16 logs, of 2 to 4 starts",
)

RIGHT = (
    "All is right there: a start loads what was saved last, or finds nothing, and goes on with the next step. Steps "
    "since the last save are run again, as they must be."
)
Log = list[tuple[str, Any]]
Diagnosis = tuple[str, int | None]
KINDS = ("healthy", "never looks", "loads an old one", "skips a step")
# steps, save every, starts, and the start at which the fault shows
SIZES = ((20, 5, 2, 1), (30, 4, 3, 1), (24, 7, 3, 2), (40, 6, 4, 2))


def log_of(kind: str, steps: int, every: int, starts: int, culprit: int) -> Log:
    """A log whose fault shows at start `culprit` (0 is the first one)."""
    chance = random.Random(f"{kind} {steps} {every} {starts}")
    # Each start ends after a save or two, the last one when the work is done.
    log: Log = []
    saved: list[int] = []
    step = 0
    for start in range(starts):
        log.append(("start", start))
        faulty = start == culprit
        loaded = saved[-1] if saved else None
        if faulty and kind == "never looks":
            loaded = None
        if faulty and kind == "loads an old one":
            loaded = saved[-2]
        log.append(("load", loaded))
        step = loaded or 0
        if faulty and kind == "skips a step":
            step += 1
        if start == starts - 1:
            last = steps
        else:
            # At least two saves in the first start, one in each further one; then some steps that are lost.
            last = step + every * (2 if start == 0 else 1) + chance.randrange(1, every)
            last -= step % every
        while step < last:
            step += 1
            log.append(("step", step))
            if step % every == 0:
                log.append(("save", step))
                saved.append(step)
        log.append(("end", "done" if start == starts - 1 else "requeued"))
    return log


@cache
def cases() -> dict[str, list[tuple[Log, Diagnosis]]]:
    """Four logs of each kind, always the same ones."""
    found: dict[str, list[tuple[Log, Diagnosis]]] = {}
    for size in SIZES:
        for kind in KINDS:
            start = None if kind == "healthy" else size[-1]
            found.setdefault(kind, []).append((log_of(kind, *size), (kind, start)))
    return found


def _require(answer: Answer, kind: str, hint: str) -> None:
    tried = cases()[kind] + cases()["healthy"]
    said = call_each(answer, [(log,) for log, _ in tried])
    for (log, right), got in zip(tried, said, strict=True):
        starts = sum(what == "start" for what, _ in log)
        named = got[1] if isinstance(got, (list, tuple)) and len(got) == 2 else None
        # A start before the broken one, or any of a healthy job, is blamed: it is right, and the sentence says why.
        blamed = type(named) is int and (right[1] is None or named < right[1])
        require_diagnosis(
            f"A job of {starts} starts",
            got,
            right,
            RIGHT if blamed else hint,
            RIGHT,
            example=("never looks", 1),
        )


@DIAGNOSE.check("a start that does not look", points=3)
def check_never(answer: Answer) -> None:
    """There is a checkpoint, and nothing is loaded."""
    _require(
        answer, "never looks", "What was saved before this start, and what does the start load?"
    )


@DIAGNOSE.check("a start that loads an old checkpoint", points=3)
def check_old(answer: Answer) -> None:
    """As from a node's own disk, on another node."""
    _require(
        answer, "loads an old one", "Is what a start loads what was saved last, or before that?"
    )


@DIAGNOSE.check("a start that skips a step", points=2)
def check_skip(answer: Answer) -> None:
    """The first step after the load."""
    _require(answer, "skips a step", "After loading step k, which step comes first?")
