"""What each rank of a run does at one moment: does it hang, why, and who is to blame?"""

from __future__ import annotations

from typing import Any

from dtcourse.course.judging import Answer, Exercise, require_diagnoses

DIAGNOSE = Exercise(
    "diagnose_hang",
    lesson="02",
    title="Which run hangs, and why?",
    takes=("diagnose_hang",),
    target="17 of 17 runs, of 2 to 7 ranks",
)

State = tuple[str, int | None]
Diagnosis = tuple[str, Any]
RUNS, RETURNED = ("runs", None), ("returned", None)
RIGHT = (
    "All is right there: each rank that waits, waits for one that runs, or for one that is at the other end of the "
    "same message, or for one that waits for such a rank."
)
HEALTHY: tuple[list[State], ...] = (
    [("send", 1), ("recv", 0)],
    [("recv", 1), ("recv", 2), ("recv", 3), RUNS],
    [("send", 2), ("recv", 0), ("recv", 0), RETURNED, ("send", 1)],
    [("new_group", 2), RUNS, ("new_group", 2)],
    [("new_group", 1), ("new_group", 1), ("new_group", 1)],
)
CIRCLES: tuple[tuple[list[State], Diagnosis], ...] = (
    ([("send", 1), ("send", 2), ("send", 3), ("send", 0)], ("circle", (0, 1, 2, 3))),
    ([RUNS, ("recv", 2), ("recv", 1)], ("circle", (1, 2))),
    ([("send", 1), ("recv", 3), ("recv", 0), ("recv", 1), RUNS], ("circle", (1, 3))),
    (
        [("send", 2), RUNS, ("recv", 4), ("recv", 0), ("send", 5), ("send", 2), RETURNED],
        ("circle", (2, 4, 5)),
    ),
)
LEFT: tuple[tuple[list[State], Diagnosis], ...] = (
    ([("recv", 1), ("recv", 2), ("recv", 3), RETURNED], ("left", 3)),
    ([RETURNED, ("send", 0), ("send", 3), ("recv", 2)], ("left", 0)),
    ([RETURNED, RUNS, ("send", 4), ("recv", 1), RETURNED], ("left", 4)),
    ([("send", 3), ("recv", 0), RETURNED, ("send", 2), RUNS], ("left", 2)),
)
NAMES: tuple[tuple[list[State], Diagnosis], ...] = (
    (
        [("new_group", 2), ("new_group", 1), ("new_group", 2), ("new_group", 1)],
        ("names", (1, 3)),
    ),
    (
        [("new_group", 3), ("new_group", 3), ("new_group", 2), ("new_group", 3)],
        ("names", (2,)),
    ),
    ([("new_group", 1), ("new_group", 2)], ("names", (0,))),
    (
        [("new_group", 2), ("new_group", 4), RUNS, ("new_group", 2), ("new_group", 2)],
        ("names", (0, 3, 4)),
    ),
)


def _require(answer: Answer, broken: tuple[tuple[list[State], Diagnosis], ...], hint: str) -> None:
    tried = [*broken, *((states, ("healthy", None)) for states in HEALTHY)]
    require_diagnoses(
        answer,
        [((states,), right) for states, right in tried],
        describe=lambda states: f"Ranks that are at {states}",
        hint=hint,
        healthy=RIGHT,
        example=("left", 3),
    )


@DIAGNOSE.check("a circle of waiting", points=3)
def check_circle(answer: Answer) -> None:
    """Others may wait for the circle, and are not on it; two ends of one message are none."""
    _require(
        answer,
        CIRCLES,
        "Follow each rank to the one that it waits for, and on from there. Where do you come to a rank for the "
        "second time, and which ranks only wait for those?",
    )


@DIAGNOSE.check("a rank that left", points=3)
def check_left(answer: Answer) -> None:
    """It has returned, and somebody still waits for it."""
    _require(
        answer, LEFT, "Which ranks have returned, and does anybody wait for them, at the end of a chain perhaps?"
    )  # fmt: skip


@DIAGNOSE.check("ranks that skipped a new_group", points=2)
def check_names(answer: Answer) -> None:
    """They have counted fewer calls than the others."""
    _require(
        answer, NAMES, "Ranks count their calls of new_group. Who has counted the fewest, and who is not there yet?"
    )  # fmt: skip
