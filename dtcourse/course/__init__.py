"""What lessons, exercises and their commands are made of. Nothing technical is taught from here.

    source.py       show(obj): the real source of what a lesson teaches
    errors.py       expect_error(...): a cell that must fail
    checks/         check("name", answer): the checks of the exercises, which answer in sentences
    notebook.py     reading and writing a notebook file, and what a lesson says of itself
    normalise.py    one form for every committed notebook
    lab.py          JupyterLab as the course opens it
    shape.py        what a lesson has to hold
    execute.py      running notebooks, with this Python and no other
    authoring.py    a notebook as a text file, and back
    exercises.py    exercises/ made from solutions/
    checking.py     a notebook's answers, each run in a process of its own
    grading.py      a folder of notebooks graded
    topics.py       which lesson teaches what
    doctor/         what this machine can run

In a notebook: `from dtcourse.course import check, expect_error, show`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dtcourse.course.errors import expect_error
    from dtcourse.course.judging import check
    from dtcourse.course.source import show

__all__ = ["check", "expect_error", "show"]

_HOME = {
    "check": "dtcourse.course.judging",
    "expect_error": "dtcourse.course.errors",
    "show": "dtcourse.course.source",
}


def __getattr__(name: str) -> Any:
    """Import the three tools when they are asked for: the command line needs none of them."""
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
