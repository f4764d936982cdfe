"""The checks of the exercises. They answer in sentences that teach, and a student's code cannot reach them.

    framework.py   Exercise, require, CheckFailed, Report: how a lesson's checks are written
    taking.py      what of a student's notebook an exercise takes: a function and what that needs
    runs.py        running an answer on ranks, and sentences for what went wrong there
    sandbox.py     the same in a process of its own, which only ever sends back plain data
    lesson_NN.py   the checks of one lesson

There are two sides. The judge holds the checks, makes the inputs, knows the expected values and decides; it
never executes a line of the answer and never unpickles what comes from there. The answer runs in ranks.
In a notebook, where a student checks their own work, both sides are in one kernel.
"""

from __future__ import annotations

from dtcourse.course.checks.framework import (
    Answer,
    CheckFailed,
    Exercise,
    NotPassed,
    Report,
    check,
    exercises,
    judge,
    require,
)

__all__ = [
    "Answer",
    "CheckFailed",
    "Exercise",
    "NotPassed",
    "Report",
    "check",
    "exercises",
    "judge",
    "require",
]
