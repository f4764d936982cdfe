"""What submissions earned, and the files that say so: points.csv, and a page of feedback for each student."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dtcourse.course.handed_in import name_of, shown
from dtcourse.course.judging.framework import Report


@dataclass
class Grade:
    """What one submission earned, with the reports; `refused` says why nothing could be graded.

    possible: the points that its lesson's exercises give, but for those that could not be judged; None where nobody can
              say which lesson it is of
    owner:    the user who put the file there
    """

    student: str
    file: str
    lesson: str = ""
    reports: list[Report] = field(default_factory=list)
    refused: str = ""
    possible: int | None = None
    owner: str = ""

    @property
    def points(self) -> int:
        """Points earned."""
        return 0 if self.refused else sum(report.points for report in self.reports)

    @property
    def note(self) -> str:
        """One line for the instructor: what could not be judged, what was refused and why, what was reached for, what
        was not attempted.
        """
        if self.refused:
            return shown(self.refused)
        if self.reports and all(_unattempted(report) for report in self.reports):
            return "not attempted"
        again = [report.exercise.name for report in self.reports if report.unjudged]
        said = [f"TO BE GRADED AGAIN: {', '.join(again)}."] if again else []
        for report in self.reports:
            sentences = [report.unjudged, report.refused, *report.attempts]
            sentences += ["not attempted" if _unattempted(report) else report.unfinished]
            if words := " ".join(filter(None, sentences)):
                said.append(f"{report.exercise.name}: {words}".rstrip(".") + ".")
        return shown(" ".join(said))

    @property
    def total(self) -> str:
        """The points as the table has them: "?" where nothing could be judged."""
        unjudged = self.reports and all(report.unjudged for report in self.reports)
        return "?" if unjudged else f"{self.points}"

    @property
    def to_be_graded_again(self) -> bool:
        """Whether something could not be judged."""
        return any(report.unjudged for report in self.reports)

    @property
    def tried(self) -> int:
        """How many things the answers reached for that are none of their business."""
        return sum(len(report.attempts) for report in self.reports)

    def feedback(self) -> str:
        """The student's feedback, as Markdown."""
        lines = [f"# {self.file}", ""]
        if self.refused:
            lost = [f"0 of {self.possible} points.", ""] if self.possible is not None else []
            return "\n".join([*lines, *lost, self.refused, ""])
        lines += [f"{self.total} of {self.possible or '?'} points.", ""]
        for report in self.reports:
            lines += ["```text", str(report), "```", ""]
        return "\n".join(lines)


def _unattempted(report: Report) -> bool:
    """Whether the exercise's cell is as it was handed out."""
    return "not written yet" in report.unfinished


def write(grades: list[Grade], out: Path) -> None:
    """points.csv (a line per submission, a column per exercise) and feedback/STUDENT.md.

    They are for this user alone, also where `out` lies in a folder that a class shares.
    """
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    columns = list(
        dict.fromkeys(report.exercise.name for grade in grades for report in grade.reports)
    )
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(
        ["student", "file", "owner", "lesson", *columns, "points", "possible", "tried", "note"]
    )
    for grade in grades:
        earned = {
            report.exercise.name: "?" if report.unjudged else report.points
            for report in grade.reports
        }
        cells = [earned.get(name, "") if not grade.refused else "" for name in columns]
        row = [
            grade.student,
            grade.file,
            grade.owner,
            grade.lesson,
            *cells,
            grade.total,
            "" if grade.possible is None else grade.possible,
            grade.tried,
            grade.note,
        ]
        table.writerow([_cell(value) for value in row])
    _write_private(out / "points.csv", text.getvalue())
    feedback = out / "feedback"
    feedback.mkdir(mode=0o700, exist_ok=True)
    feedback.chmod(0o700)
    pages: dict[str, list[str]] = {}
    for grade in grades:
        pages.setdefault(_page(grade.student), []).append(grade.feedback())
    for name, parts in pages.items():
        _write_private(feedback / f"{name}.md", "\n".join(parts))


def check_own(out: Path) -> None:
    """Raises ValueError where marks would go to a folder of somebody else's, who could read and change them."""
    with suppress(FileNotFoundError):
        owner = out.lstat().st_uid
        if out.is_symlink() or owner != os.geteuid():
            whose = f"a folder of {name_of(owner)}'s" if not out.is_symlink() else "a link"
            raise ValueError(
                f"marks are to go to {out}, and that is {whose}: give --out a folder of your own"
            )


def _page(student: str) -> str:
    """A file's name for a student's feedback."""
    name = re.sub(r"[^\w.-]+", "_", student).strip(".") or "student"
    if (
        len(name.encode()) > 120
    ):  # a file's name has an end, and two students who begin alike have a page each
        name = f"{name[:30]}-{hashlib.blake2b(student.encode('utf-8', 'backslashreplace'), digest_size=8).hexdigest()}"
    return name


def _write_private(path: Path, text: str) -> None:
    """A file that only this user can open: whole, or as it was before."""
    descriptor, aside = tempfile.mkstemp(dir=path.parent, prefix=".")  # of mode 0600
    try:
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        os.replace(aside, path)
    except BaseException:
        os.unlink(aside)
        raise


def _cell(value: object) -> object:
    """Text that a spreadsheet will not take for a formula."""
    return (
        f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t") else value
    )
