"""An analyser of records: which rank did something else, is absent, or waits in a circle."""

from __future__ import annotations

from dtcourse.course.checks.lesson_24_debugging import hang_records
from dtcourse.course.judging import Answer, Exercise, require_diagnoses

WAITS = Exercise(
    "who_waits",
    lesson="24",
    title="Who waits for whom",
    takes=("who_waits",),
    target="48 of 48 jobs on 4 to 6 ranks, drawn anew each time",
    forbidden=("dtcourse.debugging", "torch.distributed.flight_recorder"),
)

EACH = 12  # a size alone differs in half of the draws: an answer that reads names alone is seen in one of them
HEALTHY = "Which calls are over, and is there a rank that waits at all?"


def _described(records: hang_records.Records) -> str:
    return f"Records of {len(records)} ranks"


def _require(answer: Answer, kind: str, hint: str) -> None:
    kinds = [kind] * EACH + ["healthy"] * 4
    require_diagnoses(
        answer,
        [((records,), right) for records, right in map(hang_records.drawn, kinds)],
        describe=_described,
        hint=hint,
        healthy=HEALTHY,
        example=("absent", (2,)),
        shuffled=True,
    )


@WAITS.check("a call that differs", points=3)
def check_differs(answer: Answer) -> None:
    """Name or size, where three or more ranks meet."""
    _require(
        answer, "differs",
        "Two calls meet if they have the same group and the same number there, wherever they stand in a rank's list. "
        "Which ranks have another name or size in it than most?",
    )  # fmt: skip


@WAITS.check("a rank that has not come", points=3)
def check_absent(answer: Answer) -> None:
    """With ranks that wait for those who wait for it."""
    _require(
        answer, "absent",
        "Of the ranks that are missing in a call, some wait in another one. For whom do these wait, and who is missing "
        "and waits for nobody?",
    )  # fmt: skip


@WAITS.check("a circle", points=3)
def check_circle(answer: Answer) -> None:
    """And those who only wait behind it."""
    _require(
        answer, "circle",
        "Follow the waits until a rank comes a second time. Which ranks lie between its two places, and which were "
        "only on the way to it?",
    )  # fmt: skip
