"""Logs of runs that are quietly wrong, drawn anew each time: what is wrong, and where?"""

from __future__ import annotations

from dtcourse.course.checks.lesson_24b_quiet_mistakes import quiet_runs
from dtcourse.course.judging import Answer, Exercise, require_diagnoses
from dtcourse.course.judging.threads import one_thread

RUN = Exercise(
    "diagnose_quiet",
    lesson="24b",
    title="What went wrong in this run?",
    takes=("diagnose_quiet",),
    target="40 of 40 runs on 3 to 6 ranks, drawn anew each time",
)

HEALTHY = "Which numbers are to be the same on all ranks, and which are each rank's own?"


def _described(ranks: int, log: quiet_runs.Log) -> str:
    return f"A run of {len(log)} steps on {ranks} ranks"


def _require(answer: Answer, kinds: tuple[str, ...], hint: str) -> None:
    with one_thread():
        cases = [quiet_runs.drawn(kind) for kind in ("healthy", *kinds) for _ in range(5)]
    require_diagnoses(
        answer, cases, describe=_described, hint=hint, healthy=HEALTHY, example=("skipped", 1), shuffled=True
    )  # fmt: skip


@RUN.check("one rank has other weights", points=4)
def check_one_rank(answer: Answer) -> None:
    """A step left out, another learning rate, a bit that flipped."""
    _require(
        answer, ("skipped", "rate", "flipped"),
        "Look at the first step after which the sums are not the same on all ranks: which rank differs from most, in "
        "how many tensors, and did that rank's own sums change in this step?",
    )  # fmt: skip


@RUN.check("a gradient that nobody averages", points=3)
def check_unaveraged(answer: Answer) -> None:
    """Of one parameter, from some step on."""
    _require(
        answer, ("unaveraged",),
        "Before the weights differ, something else does: what does each rank take its step with, and of which "
        "parameter is it not the same for all in the first step that is wrong?",
    )  # fmt: skip


@RUN.check("samples that are read twice", points=2)
def check_samples(answer: Answer) -> None:
    """All replicas agree."""
    _require(
        answer, ("samples",),
        "All replicas agree, and the mean is of too few samples. Which ranks read the same ones?",
    )  # fmt: skip
