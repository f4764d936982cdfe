"""Who can read marks: the instructor alone, also where a class shares the folder."""

from __future__ import annotations

import os

from dtcourse.course.grading import Grade, write


def modes(folder):
    return {path.name: path.stat().st_mode & 0o777 for path in [folder, *folder.rglob("*")]}


def test_marks_and_feedback_are_for_their_owner_whatever_the_umask(tmp_path):
    grades = [Grade("ana", "ana-03.ipynb", "03", refused="It is no notebook.")]
    before = os.umask(0)
    try:
        write(grades, tmp_path / "graded")
    finally:
        os.umask(before)
    private = {"graded": 0o700, "points.csv": 0o600, "feedback": 0o700, "ana.md": 0o600}
    assert modes(tmp_path / "graded") == private


def test_what_an_earlier_version_left_open_is_closed(tmp_path):
    (tmp_path / "feedback").mkdir(mode=0o755)
    (tmp_path / "points.csv").touch(mode=0o644)
    write([Grade("ana", "ana-03.ipynb", "03", refused="It is no notebook.")], tmp_path)
    found = modes(tmp_path)
    assert (found["points.csv"], found["feedback"]) == (0o600, 0o700)
