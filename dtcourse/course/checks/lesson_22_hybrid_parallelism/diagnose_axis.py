"""Logs of runs on a mesh, drawn anew each time: which axis is treated wrongly, and how?"""

from __future__ import annotations

from dtcourse.course.checks.lesson_22_hybrid_parallelism import axis_runs
from dtcourse.course.checks.lesson_22_hybrid_parallelism.axis_runs import AXES, Log
from dtcourse.course.judging import Answer, Exercise, require_kind

DIAGNOSE = Exercise(
    "diagnose_axis",
    lesson="22",
    title="Which axis is wrong, and how?",
    takes=("diagnose_axis",),
    target="24 of 24 runs on up to 27 ranks, drawn anew each time",
)

EACH = 4  # runs of a kind, and as many healthy ones beside them
HEALTHY = (
    "Where does each rank lie on the mesh? Which ranks hold copies of one thing there, and which hold parts of it? "
    "Which axes have one rank only? And which differences are rounding?"
)


def _described(axes: tuple[str, ...], sizes: dict[str, int], log: Log, reference: Log) -> str:
    return f"A run of {len(log)} steps on {' x '.join(f'{axis} {sizes[axis]}' for axis in axes)}"


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_kind(
        answer,
        kind,
        hint,
        drawn=axis_runs.drawn,
        each=EACH,
        describe=_described,
        healthy=HEALTHY,
        example=("doubled", AXES[1]),
    )


@DIAGNOSE.check("a reduction that is missing", points=3)
def check_missing(answer: Answer) -> None:
    """Over each of the axes, from the first step on or later."""
    _require(
        answer, "missing",
        "Which ranks use unlike gradients of what they hold copies of, where do these lie on the mesh, and in which "
        "step for the first time?",
    )  # fmt: skip


@DIAGNOSE.check("a reduction that is made twice", points=3)
def check_doubled(answer: Answer) -> None:
    """All copies agree."""
    _require(
        answer, "doubled",
        "All copies agree, and some gradients are too large. Which are, which are not, and over which axis is just the "
        "former's sum? Look at the first step in which it is so: later ones start from other weights.",
    )  # fmt: skip


@DIAGNOSE.check("a norm over the wrong ranks", points=3)
def check_norm(answer: Answer) -> None:
    """The gradients are right; what they are clipped by is not."""
    _require(
        answer, "norm",
        "The gradients are right in the first step that is wrong. Which ranks clip by unlike norms; or, if all agree, "
        "how large is their norm beside one process's?",
    )  # fmt: skip
