"""Logs of what workers and ranks did, drawn anew each time: what does the job wait for, and on which rank?"""

from __future__ import annotations

from dtcourse.course.checks.lesson_07b_data_stalls.stall_logs import EACH, Row, recorded
from dtcourse.course.judging import Answer, Exercise, require_kind

DIAGNOSE = Exercise(
    "diagnose_stall",
    lesson="07b",
    title="What does the job wait for?",
    takes=("diagnose_stall",),
    target="36 of 36 logs of 3 to 5 ranks with 3 or 4 workers each, drawn anew each time",
)

HEALTHY = (
    "In a healthy job somebody waits, too: workers for room, ranks for one that had a longer step, and all for the "
    "first batch. Which waiting makes a step longer?"
)


def _described(rows: list[Row], ranks: int) -> str:
    workers = len({row[1] for row in rows if row[1] is not None})
    return f"A job of {ranks} ranks with {workers} workers each"


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_kind(
        answer,
        kind,
        hint,
        drawn=recorded,
        each=EACH,
        describe=_described,
        healthy=HEALTHY,
        example=("decode", 2),
    )


@DIAGNOSE.check("storage that gives too little", points=2)
def check_storage(answer: Answer) -> None:
    """To one rank, or to all."""
    _require(
        answer,
        "storage",
        "Who waits only because another one waits? And what do the workers of that other one do all the time?",
    )


@DIAGNOSE.check("decoding that takes too long", points=2)
def check_decode(answer: Answer) -> None:
    """On one rank, or on all."""
    _require(
        answer,
        "decode",
        "Which rank makes the others wait, and what do its workers do all the time, not all workers together?",
    )


@DIAGNOSE.check("a rank that computes more slowly", points=1)
def check_compute(answer: Answer) -> None:
    """Its data is there."""
    _require(
        answer, "compute", "Which rank waits least for the others, and does it wait for a batch?"
    )


@DIAGNOSE.check("too few batches ready for a long read", points=2)
def check_prefetch(answer: Answer) -> None:
    """The workers wait for room, and later the rank for them."""
    _require(
        answer,
        "prefetch",
        "Are the workers of a rank that waits too slow on the whole, if they wait themselves at other times?",
    )


@DIAGNOSE.check("workers that are started anew", points=1)
def check_start(answer: Answer) -> None:
    """Nobody works at the beginning of an epoch."""
    _require(
        answer,
        "start",
        "When in an epoch does everybody wait, and how long does the batch take that is waited for, from the first "
        "moment that somebody works on it?",
    )


@DIAGNOSE.check("a worker that has more shards than the others", points=2)
def check_shards(answer: Answer) -> None:
    """At the end of an epoch it is alone."""
    _require(
        answer,
        "shards",
        "When in an epoch does the rank wait, and who makes the batches that it gets then?",
    )
