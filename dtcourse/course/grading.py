"""Checking one notebook, and grading a folder of them.

Every notebook is read before the first answer runs. Each exercise runs in a sandbox (checks/sandbox.py), and
nothing that is read from an answer is executed or unpickled here. A sandbox imports a copy of the package that is
written for it alone, from what the files held before the first answer ran: an answer that finds the package
on the disk and edits it changes no grade, and is told of at the end.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from dtcourse.course import notebook as nbfile
from dtcourse.course.checks.framework import (
    Check,
    Exercise,
    Refused,
    Report,
    Unfinished,
    exercises,
    judge,
)
from dtcourse.course.places import PACKAGE

LIMIT = 300.0


def check_notebook(
    notebook: nbfile.Notebook,
    wanted: Iterable[Exercise],
    *,
    limit: float = LIMIT,
    on_check: Callable[[Exercise, Check], None] | None = None,
    package: dict[str, bytes] | None = None,
) -> list[Report]:
    """Put exercises' checks to a student's notebook, each answer in a process of its own.

    limit:   seconds for all of it
    package: the files that the answer's process imports dtcourse from (`snapshot`); None: where it is installed
    """
    from dtcourse.course.checks.sandbox import Sandbox
    from dtcourse.course.checks.taking import take

    reports = []
    with Sandbox(limit, package=package) as sandbox:
        for exercise in wanted:
            try:
                sandbox.load(take(notebook, exercise.takes), exercise.takes)
            except Unfinished as error:
                reports.append(Report(exercise, unfinished=str(error)))
                continue
            except Refused as error:
                reports.append(Report(exercise, refused=str(error)))
                continue
            told = (lambda one, of=exercise: on_check(of, one)) if on_check else None
            reports.append(judge(exercise, sandbox, told))
    return reports


def check_path(
    path: Path,
    number: str,
    *,
    limit: float = LIMIT,
    on_check: Callable[[Exercise, Check], None] | None = None,
) -> list[Report]:
    """The reports on a student's notebook of one lesson.

    Raises
    ------
    ValueError
        If the file is no notebook, or the lesson has no checks; in a sentence.
    """
    notebook = nbfile.read(path)
    return check_notebook(notebook, exercises_of(number), limit=limit, on_check=on_check)


def exercises_of(number: str) -> list[Exercise]:
    """The exercises of a lesson.

    Raises
    ------
    ValueError
        If it has none.
    """
    found = list(exercises(number).values())
    if not found:
        raise ValueError(f"lesson {number} has no checks")
    return found


@dataclass
class Grade:
    """What one submission earned, with the reports; `refused` says why nothing could be graded."""

    student: str
    file: str
    lesson: str = ""
    reports: list[Report] = field(default_factory=list)
    refused: str = ""

    @property
    def points(self) -> int:
        """Points earned."""
        return 0 if self.refused else sum(report.points for report in self.reports)

    @property
    def possible(self) -> int:
        """Points that the lesson's exercises give."""
        return sum(report.exercise.points for report in self.reports)

    @property
    def note(self) -> str:
        """One line for the instructor: what was refused and why."""
        refused = [
            f"{report.exercise.name}: {report.refused}" for report in self.reports if report.refused
        ]
        return self.refused or "; ".join(refused)

    def feedback(self) -> str:
        """The student's feedback, as Markdown."""
        lines = [f"# {self.file}", ""]
        if self.refused:
            return "\n".join([*lines, self.refused, ""])
        lines += [f"{self.points} of {self.possible} points.", ""]
        for report in self.reports:
            lines += ["```text", str(report), "```", ""]
        return "\n".join(lines)


@dataclass(frozen=True)
class Submission:
    """One file of a folder, read before anything runs."""

    student: str
    file: str
    data: bytes


def submissions(folder: Path, out: Path | None = None) -> list[Submission]:
    """The notebooks in a folder: ana-02.ipynb, or ana/02-processes.ipynb. The student is the folder, or the name.

    Raises
    ------
    ValueError
        If the folder is not there, or holds no notebook.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder")
    found = []
    for path in sorted(folder.rglob("*.ipynb")):
        inside = path.relative_to(folder)
        if any(part.startswith(".") for part in inside.parts) or (out and path.is_relative_to(out)):
            continue
        if path.is_symlink() or not path.is_file():
            continue  # a link could lead to another student's work, or out of the folder
        student = inside.parts[0] if len(inside.parts) > 1 else _student(inside.stem)
        found.append(Submission(student, inside.as_posix(), path.read_bytes()))
    if not found:
        raise ValueError(f"{folder} holds no notebook (*.ipynb)")
    return found


def _student(stem: str) -> str:
    """ana-02-processes-and-ranks is ana's."""
    name = re.split(r"[-_ ]*(?<!\d)\d\d(?!\d)", stem, maxsplit=1)[0].strip("-_ ")
    return name or stem


def grade(
    folder: Path,
    out: Path,
    *,
    lesson: str | None = None,
    limit: float = LIMIT,
    on_submission: Callable[[int, int, Submission], None] | None = None,
    on_changed: Callable[[list[str]], None] | None = None,
) -> list[Grade]:
    """Grade every notebook of a folder; writes points.csv and feedback/ under `out` at the end.

    on_changed is told of files of the package that are not what they were before the first answer ran.

    Raises
    ------
    ValueError
        If the folder holds nothing to grade. A submission by itself never raises: it is refused in its grade.
    """
    from dtcourse.course.workspace import number_in

    all_of_them = submissions(folder, out)
    grades = []
    if lesson is not None:
        exercises_of(lesson)
    before = snapshot()
    for index, submission in enumerate(all_of_them, 1):
        if on_submission:
            on_submission(index, len(all_of_them), submission)
        result = Grade(submission.student, submission.file)
        try:
            result.lesson = lesson or number_in(Path(submission.file).name)
            notebook = nbfile.parse(submission.data, Path(submission.file).name)
            wanted = exercises_of(result.lesson)
            result.reports = check_notebook(notebook, wanted, limit=limit, package=before)
        except ValueError as error:
            result.refused = f"{error}"
        except Exception as error:  # one submission must not cost the others their grade
            result.refused = f"It could not be graded: {type(error).__name__}: {error}"
        grades.append(result)
    write(grades, out)
    after = snapshot()
    changed = sorted(
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    )
    if changed and on_changed:
        on_changed(changed)
    return grades


def write(grades: list[Grade], out: Path) -> None:
    """points.csv (a line per submission, a column per exercise) and feedback/STUDENT.md."""
    out.mkdir(parents=True, exist_ok=True)
    columns = list(
        dict.fromkeys(report.exercise.name for grade in grades for report in grade.reports)
    )
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["student", "file", "lesson", *columns, "points", "possible", "note"])
    for grade in grades:
        earned = {report.exercise.name: report.points for report in grade.reports}
        cells = [earned.get(name, "") if not grade.refused else "" for name in columns]
        row = [
            grade.student,
            grade.file,
            grade.lesson,
            *cells,
            grade.points,
            grade.possible,
            grade.note,
        ]
        table.writerow([_cell(value) for value in row])
    (out / "points.csv").write_text(text.getvalue(), encoding="utf-8")
    feedback = out / "feedback"
    feedback.mkdir(exist_ok=True)
    pages: dict[str, list[str]] = {}
    for grade in grades:
        name = re.sub(r"[^\w.-]+", "_", grade.student).strip(".") or "student"
        pages.setdefault(name, []).append(grade.feedback())
    for name, parts in pages.items():
        (feedback / f"{name}.md").write_text("\n".join(parts), encoding="utf-8")


def _cell(value: object) -> object:
    """Text that a spreadsheet will not take for a formula."""
    return (
        f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t") else value
    )


def snapshot() -> dict[str, bytes]:
    """The package's files as they are now, by their path under the package's parent."""
    kinds = (".py", ".yml", ".json")
    return {
        path.relative_to(PACKAGE.parent).as_posix(): path.read_bytes()
        for path in sorted(PACKAGE.rglob("*"))
        if path.suffix in kinds and path.is_file()
    }


__all__ = [
    "Grade",
    "check_notebook",
    "check_path",
    "exercises_of",
    "grade",
    "submissions",
    "write",
]
