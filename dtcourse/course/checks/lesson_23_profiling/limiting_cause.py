"""Traces of jobs, drawn anew and shuffled: what limits each, and on which rank?"""

from __future__ import annotations

from typing import Any

from dtcourse.course.checks.lesson_23_profiling import drawn_jobs
from dtcourse.course.judging import Answer, Exercise, require_diagnoses

LIMIT = Exercise(
    "limiting_cause",
    lesson="23",
    title="What limits this job?",
    takes=("limiting_cause",),
    target="42 of 42 traces of 3 or 4 ranks, drawn anew each time",
    forbidden=("dtcourse.profiling",),
)

EACH = 4
HEALTHY = (
    "Does what seems long there make the steps longer: a rank's early call, a loader that is ahead, one layer that "
    "is repeated?"
)


def _described(events: Any, flops: list[float]) -> str:
    steps = sum(what == "load" for what, *_ in events[0])
    return f"A job of {len(flops)} ranks and {steps} steps"


def _require(answer: Answer, kind: str, hint: str) -> None:
    cases = []
    for what in [kind] * EACH + ["healthy"] * 3:
        job, rank = drawn_jobs.drawn(what)
        cases.append((drawn_jobs.run(job), (what, rank)))
    require_diagnoses(
        answer,
        cases,
        describe=_described,
        hint=hint,
        healthy=HEALTHY,
        example=("slow", 2),
        shuffled=True,
    )


@LIMIT.check("a slow rank", points=2)
def check_slow(answer: Answer) -> None:
    """Its work is the others'."""
    _require(answer, "slow", "Which rank takes longer, and has it more to compute?")


@LIMIT.check("a rank with more work", points=2)
def check_work(answer: Answer) -> None:
    """Its speed is the others'."""
    _require(answer, "work", "Which rank takes longer, and how many FLOPs has it in that time?")


@LIMIT.check("a loader", points=1)
def check_data(answer: Answer) -> None:
    """All ranks wait for it."""
    _require(answer, "data", "What does each step begin with, and for how long, after the first?")


@LIMIT.check("repeated forwards", points=1)
def check_recompute(answer: Answer) -> None:
    """In backward."""
    _require(answer, "recompute", "How often does each layer's forward run in a step?")


@LIMIT.check("what a message costs whatever its size", points=2)
def check_latency(answer: Answer) -> None:
    """All-reduces of other sizes take nearly as long."""
    _require(
        answer, "latency",
        "From the last rank's call on, how long do messages of other sizes take, and what of it would larger buckets "
        "save?",
    )  # fmt: skip


@LIMIT.check("what a message's bytes cost", points=2)
def check_bytes(answer: Answer) -> None:
    """All-reduces take time in proportion."""
    _require(
        answer, "bytes",
        "From the last rank's call on, how does a message's time grow with its bytes, and what is left when the "
        "part without bytes is taken off?",
    )  # fmt: skip
