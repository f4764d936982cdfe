"""Logs of jobs that Slurm ended and started again, drawn anew each time: which is broken, and from which start on."""

from __future__ import annotations

import random
from typing import Any

from dtcourse.course.judging import Answer, Exercise, call_each, require_diagnosis

DIAGNOSE = Exercise(
    "diagnose_job",
    lesson="26",
    title="Which job is broken, and since when?",
    takes=("diagnose_job",),
    target="24 of 24 logs, of 2 to 5 starts, drawn anew each time, and shuffled",
)

RIGHT = (
    "All is right there: a start loads what was saved last, or finds nothing, and goes on with the next step. Steps "
    "since the last save are run again, as they must be."
)
Log = list[tuple[str, Any]]
Diagnosis = tuple[str, int | None]


def drawn(kind: str, turn: int) -> tuple[Log, Diagnosis]:
    """A log of this kind, and its diagnosis.

    turn: 0 to 3. In the first two the first start ends before it has saved, so that a second one finds nothing, as it
          should; in turn 0 it is the first start that skips a step
    """
    starts, every = random.randint(2, 4), random.randint(3, 7)
    # Saves of each start. One that does not look needs a checkpoint, and one that loads an old one needs two.
    saves = [random.randint(1, 2) for _ in range(starts)]
    needed = {"never looks": 1, "loads an old one": 2}.get(kind, 0)
    if turn < 2:
        saves[0] = 0
        if needed:
            starts, saves = starts + 1, [0, 2, *saves[1:]]
    elif needed == 2:
        saves[0] = 2
    able = [start for start in range(starts) if sum(saves[:start]) >= needed]
    culprit = 0 if kind == "skips a step" and turn == 0 else random.choice(able)
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
            last = step + random.randint(2, 2 * every)
        else:
            # After the last save come steps that are lost.
            last = step + every * saves[start] + random.randrange(2, every)
            last -= step % every
        while step < last:
            step += 1
            log.append(("step", step))
            if step % every == 0:
                log.append(("save", step))
                saved.append(step)
        log.append(("end", "done" if start == starts - 1 else "requeued"))
    return log, (kind, None if kind == "healthy" else culprit)


def _require(answer: Answer, kind: str, hint: str) -> None:
    tried = [drawn(one, turn) for one in (kind, "healthy") for turn in range(4)]
    said = call_each(answer, [(log,) for log, _ in tried], shuffled=True)
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
