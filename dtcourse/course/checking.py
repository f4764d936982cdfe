"""Checking one notebook: its exercises' checks are put to its answers, which run in a sandbox (judging/sandbox.py).

What is not written yet is known from the notebook's text. A notebook without an answer starts no process, and imports
no torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dtcourse.course import notebook as nbfile
from dtcourse.course.judging.framework import (
    Check,
    Exercise,
    Refused,
    Report,
    Unfinished,
    judge,
)
from dtcourse.course.judging.outlines import outlines
from dtcourse.course.judging.taking import Piece, take
from dtcourse.course.workspace import is_lesson

if TYPE_CHECKING:
    from dtcourse.course.judging.sandbox import Sandbox

LIMIT = 300.0
# What reading a text raises that is nested further than Python goes: that is its author's fault, not the judge's.
_TOO_DEEP = (RecursionError, MemoryError, SyntaxError, ValueError)


def check_notebook(
    notebook: nbfile.Notebook,
    wanted: Iterable[Exercise],
    *,
    limit: float = LIMIT,
    on_check: Callable[[Exercise, Check], None] | None = None,
    modules: Mapping[str, Path] | None = None,
    private: Iterable[Path] = (),
    confined: bool | None = None,
) -> list[Report]:
    """Put exercises' checks to a student's notebook, whose answers run in a process of their own.

    limit:    seconds for what the answers' process is asked, without the judge's own work
    modules:  what that process imports the course from (judging/sandbox.py); None: where it is installed
    private:  folders that are none of its business
    confined: whether bubblewrap keeps it apart; None: where that is possible

    Raises ValueError where the notebook is a copy of a lesson, which has no answers, and NoSandbox, which is one, where
    that process does not start.
    """
    if is_lesson(notebook):
        raise ValueError(
            "this is a copy of the lesson; its exercises are a notebook of their own, with `exercises` in its name"
        )
    taken = [_take(notebook, exercise) for exercise in wanted]
    answers = [(one.exercise, one.pieces) for one in taken if isinstance(one, _Answered)]
    if not answers:  # nothing to run, and nothing to import
        return [one for one in taken if isinstance(one, Report)]
    from dtcourse.course.judging import imports
    from dtcourse.course.judging.bubblewrap import why_not
    from dtcourse.course.judging.sandbox import Sandbox

    if "torch" not in sys.modules:
        # What checks compute is small. Threads that wait for a share of it keep the answers from the cores.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        _start_own_ranks([exercise for exercise, _ in answers if exercise.launches])
    confined = not why_not() if confined is None else confined
    needed = imports.of(answers)
    with Sandbox(
        limit, modules=modules, confined=confined, private=private, imports=needed
    ) as sandbox:
        sandbox.begin()  # while the checks are imported, which import torch here
        return [_put(sandbox, one, on_check) for one in taken]


def _start_own_ranks(launching: list[Exercise]) -> None:
    """The judge's own ranks will be copies of this process, where some of these exercises launch them.

    A server of their own would import torch once more, and load the course for ranks that are launched once or twice.
    It has to be split off before a sandbox begins, which threads of this process watch.
    """
    from dtcourse.launch import server

    for exercise in launching:
        exercise.load()
    if launching:
        server.start_within([])


def check_in(
    sandbox: Sandbox,
    notebook: nbfile.Notebook,
    wanted: Iterable[Exercise],
    on_check: Callable[[Exercise, Check], None] | None = None,
) -> list[Report]:
    """The same in a given process for answers."""
    return [_put(sandbox, _take(notebook, exercise), on_check) for exercise in wanted]


@dataclass(frozen=True)
class _Answered:
    """An answer to an exercise, as text."""

    exercise: Exercise
    pieces: list[Piece]


def _take(notebook: nbfile.Notebook, exercise: Exercise) -> _Answered | Report:
    """The answer, or the report where there is none to run."""
    try:
        return _Answered(exercise, take(notebook, exercise.takes))
    except Unfinished as error:
        return Report(exercise, unfinished=str(error))
    except Refused as error:
        return Report(exercise, refused=str(error))
    except _TOO_DEEP as error:
        return _unreadable(exercise, error)


def _unreadable(exercise: Exercise, error: Exception) -> Report:
    return Report(
        exercise,
        refused=f"Python does not get through what {', '.join(exercise.takes)} needs ({type(error).__name__}): is an "
        "expression nested hundreds of times, or a sum of hundreds of terms? Write it as a loop.",
    )


def _put(
    sandbox: Sandbox,
    taken: _Answered | Report,
    on_check: Callable[[Exercise, Check], None] | None,
) -> Report:
    """What an exercise's checks say of an answer."""
    if isinstance(taken, Report):
        return taken
    from dtcourse.course.judging import forbidden

    exercise = taken.exercise.load()
    try:
        refused = forbidden.found(taken.pieces, exercise.forbidden)
    except _TOO_DEEP as error:
        return _unreadable(exercise, error)
    if refused:
        return Report(exercise, refused=refused)
    sandbox.load(taken.pieces, exercise.takes)
    told = (lambda one: on_check(exercise, one)) if on_check else None
    report = judge(exercise, sandbox, told)
    succeeded = "" if sandbox.confined else ", and nothing kept it from that"
    report.attempts = [f"It tried to {words}{succeeded}." for words in sandbox.tried()]
    return report


def exercises_of(number: str) -> list[Exercise]:
    """The exercises of a lesson, without their checks (judging/outlines.py).

    Raises ValueError if it has none.
    """
    found = list(outlines(number).values())
    if not found:
        raise ValueError(f"lesson {number} has no checks")
    return found
