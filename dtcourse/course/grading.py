"""Grading a folder of notebooks. Each is checked as its author would (checking.py).

Where the judge itself fails, nobody's points are lost: what could not be judged is in no total, and marked.

Every notebook is read before the first answer runs. Each notebook runs in a sandbox of its own (judging/sandbox.py),
and nothing that is read from an answer is executed or unpickled here. On Linux, bubblewrap keeps an answer from the
files, processes and networks of the machine; what it reached for is named in its feedback and in the note of its line.

Without bubblewrap an answer can do what the instructor can, so `grade` wants to be told (trust=True). It still imports
a copy of the package that is made for it alone, from what the files held before the first answer ran: an answer that
finds the package on the disk and edits it changes no grade, and is told of at the end.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from dtcourse.course import notebook as nbfile
from dtcourse.course import places
from dtcourse.course.checking import LIMIT, check_in, check_notebook, exercises_of
from dtcourse.course.handed_in import Submission, submissions
from dtcourse.course.judging.framework import Exercise, Report
from dtcourse.course.judging.requirements import NoSandbox, unjudged
from dtcourse.course.marks import Grade, check_own, write
from dtcourse.course.places import PACKAGE
from dtcourse.course.workspace import number_in


def grade(
    folder: Path,
    out: Path,
    *,
    lesson: str | None = None,
    limit: float = LIMIT,
    trust: bool = False,
    on_submission: Callable[[int, int, Submission], None] | None = None,
    on_changed: Callable[[list[str]], None] | None = None,
    on_grade: Callable[[int, int, Grade], None] | None = None,
) -> list[Grade]:
    """Grade every notebook of a folder; writes points.csv and feedback/ under `out` after each.

    trust:      run the answers without bubblewrap
    on_changed: is told of files of the package that are not what they were before the first answer ran

    Raises ValueError if the folder holds nothing to grade, or the answers cannot be kept apart and are not trusted. A
    submission by itself never raises: it is refused in its grade.
    """
    from dtcourse.course.judging.bubblewrap import why_not
    from dtcourse.course.judging.sandbox import MODULES

    check_own(out)
    all_of_them = submissions(folder, out)
    if lesson is not None:
        exercises_of(lesson)
    if not trust and (reason := why_not()):
        raise ValueError(
            f"grading runs what students wrote, and nothing would keep it from your files: {reason}; "
            "--trust runs it all the same, as you, with all that you may read and write"
        )
    before = contents()
    grades = []
    with tempfile.TemporaryDirectory(prefix="dtcourse-grade-") as scratch:
        copy = Path(scratch, PACKAGE.name)
        shutil.copytree(PACKAGE, copy)
        options = {
            "limit": limit,
            "modules": {**MODULES, PACKAGE.name: copy},
            "private": [folder, out, *_course()],
            "confined": not trust,
        }
        for index, submission in enumerate(all_of_them, 1):
            if on_submission:
                on_submission(index, len(all_of_them), submission)
            grades.append(_grade_one(submission, lesson, options))
            write(grades, out)  # all so far: whatever ends this run, they are there
            if on_grade:
                on_grade(index, len(all_of_them), grades[-1])
    after = contents()
    changed = sorted(
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    )
    if changed and on_changed:
        on_changed(changed)
    return grades


def _grade_one(submission: Submission, lesson: str | None, options: dict[str, Any]) -> Grade:
    result = Grade(submission.student, submission.file, owner=submission.owner)
    name = Path(submission.file).name
    wanted: list[Exercise] = []
    try:
        result.lesson = lesson or number_in(name)
        wanted = exercises_of(result.lesson)
        result.possible = sum(exercise.points for exercise in wanted)
        if submission.refused:
            raise ValueError(submission.refused)
        result.reports = check_notebook(nbfile.parse(submission.data, name), wanted, **options)
    except NoSandbox as error:
        result.reports = _not_judged(wanted, error)
    except ValueError as error:
        result.refused = f"{error}"
    except Exception as error:  # costs neither the others their grade, nor its author the points
        result.reports = _not_judged(wanted, error)
        result.refused = "" if wanted else str(unjudged(error))
    if result.reports:
        result.possible = sum(report.possible for report in result.reports)
    return result


def _not_judged(wanted: list[Exercise], error: Exception) -> list[Report]:
    """Of each exercise, where the judge has failed before any check was made."""
    return [Report(exercise, unjudged=str(unjudged(error))) for exercise in wanted]


def _course() -> list[Path]:
    """Where solutions and tests are."""
    found = [PACKAGE.parent] if (PACKAGE.parent / "pyproject.toml").is_file() else []
    with suppress(ValueError):
        found.append(places.home())
    return found


def contents() -> dict[str, bytes]:
    """What the package's files hold now, by their path under the package's parent."""
    kinds = (".py", ".yml", ".json")
    return {
        path.relative_to(PACKAGE.parent).as_posix(): path.read_bytes()
        for path in sorted(PACKAGE.rglob("*"))
        if path.suffix in kinds and path.is_file()
    }


__all__ = [
    "Grade",
    "check_in",
    "check_notebook",
    "exercises_of",
    "grade",
    "submissions",
    "write",
]
