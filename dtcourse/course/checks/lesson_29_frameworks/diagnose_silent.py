"""Logs of runs whose configuration is wrong without a word, drawn anew each time: what is wrong, and where?"""

from __future__ import annotations

from typing import Any

from dtcourse.course.checks.lesson_29_frameworks import silent_runs
from dtcourse.course.judging import Answer, Exercise, require_kind
from dtcourse.plural import plural

DIAGNOSE = Exercise(
    "diagnose_silent",
    lesson="29",
    title="Which job is silently wrong, and how?",
    takes=("diagnose_silent",),
    target="40 of 40 runs on 2 to 4 ranks, drawn anew each time, and shuffled",
)

HEALTHY = (
    "All is right there: each rank reads samples of its own, all use the mean of their gradients, and each weight "
    "moves by it. Which differences are rounding?"
)


def _described(ranks: int, _lr: float, log: list[dict[str, Any]]) -> str:
    return f"A run of {plural(len(log), 'step')} on {plural(ranks, 'rank')}"


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_kind(
        answer, kind, hint, drawn=silent_runs.drawn, each=4, describe=_described, healthy=HEALTHY,
        example=("frozen", 3),
    )  # fmt: skip


@DIAGNOSE.check("processes that are alone", points=2)
def check_alone(answer: Answer) -> None:
    """No loss shows it."""
    _require(
        answer,
        "alone",
        "Which samples does each rank read, and whose gradients are in what it uses?",
    )


@DIAGNOSE.check("samples that are read twice", points=2)
def check_repeated(answer: Answer) -> None:
    """By a rank beside the first."""
    _require(
        answer, "repeated", "Which ranks read the same samples, from some step on, and which of them is not rank 0?"
    )  # fmt: skip


@DIAGNOSE.check("weights that do not move", points=2)
def check_frozen(answer: Answer) -> None:
    """The optimizer holds something else."""
    _require(answer, "frozen", "In which step do gradients first change nothing?")


@DIAGNOSE.check("gradients that are kept", points=3)
def check_kept(answer: Answer) -> None:
    """They were not cleared."""
    _require(
        answer, "kept", "In which step is what is used first more than the mean of this step's gradients, and by what?"
    )  # fmt: skip


@DIAGNOSE.check("a rank that is left out", points=3)
def check_left_out(answer: Answer) -> None:
    """The mean is still divided by all."""
    _require(
        answer, "left out", "Whose gradient is missing in what is used? The sum is still divided by the number of all."
    )  # fmt: skip
