"""Timelines of three steps of a zero-bubble pipeline, drawn anew for each check: what is wrong, and on which rank."""

from __future__ import annotations

from random import Random

from dtcourse.course.checks.lesson_18b_zero_bubble import several_steps
from dtcourse.course.checks.lesson_18b_zero_bubble.several_steps import Event
from dtcourse.course.judging import Answer, Exercise, require_kind
from dtcourse.plural import plural

DIAGNOSE = Exercise(
    "diagnose_steps",
    lesson="18b",
    title="Three steps of a pipeline",
    takes=("diagnose_steps",),
    target="24 of 24 timelines of 3 to 6 ranks, drawn anew each time",
)

EACH = 3  # timelines with a fault, and as many healthy ones beside them


def _described(events: list[Event], room: int) -> str:
    ranks = 1 + max(event[1] for event in events)
    m = 1 + max(event[3] for event in events)
    return f"{ranks} ranks, {plural(m, 'micro-batch', 'micro-batches')} per step, room for {room}"


def _require(answer: Answer, kind: str, hint: str) -> None:
    draw = Random()
    require_kind(
        answer,
        kind,
        hint,
        drawn=lambda one, turn: several_steps.case(one, turn, draw),
        each=EACH,
        describe=_described,
        healthy="What has each rank to wait for, and until when does a rank store a micro-batch? (Rank 0 of ZB-H1 "
        "performs each W at once, and its last rank may be done before a step begins elsewhere.)",
        example=("early update", 2),
    )


@DIAGNOSE.check("a barrier between steps", points=2)
def check_barrier(answer: Answer) -> None:
    """Where one costs time."""
    _require(
        answer,
        "barrier",
        "Which rank needs nothing from others to begin a step, and when does it begin?",
    )


@DIAGNOSE.check("weights that change before all gradients are there", points=2)
def check_early(answer: Answer) -> None:
    """The timeline looks better for it."""
    _require(
        answer,
        "early update",
        "A step's first forward meets new weights. Which gradients of the step before are not in them?",
    )


@DIAGNOSE.check("a backward in one piece", points=2)
def check_whole(answer: Answer) -> None:
    """Two actions in the timeline, and the rank before waits for both."""
    _require(
        answer,
        "gradient held back",
        "When could the rank before have begun each of its I, and when does it begin?",
    )


@DIAGNOSE.check("more stored than there is room for", points=2)
def check_room(answer: Answer) -> None:
    """No gap shows it."""
    _require(
        answer,
        "over room",
        "How many micro-batches does each rank store at its worst moment, and until which action does it store one?",
    )
