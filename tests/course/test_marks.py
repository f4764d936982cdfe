"""What a class can read: not the marks, and the installation that it is to use."""

from __future__ import annotations

import csv
import json
import os
import tempfile
from pathlib import Path

import pytest

from dtcourse.course import grading
from dtcourse.course.doctor.cluster import closed_to_others
from dtcourse.course.grading import Grade, exercises_of, grade, write
from dtcourse.course.judging.framework import Report
from dtcourse.course.judging.requirements import NoSandbox


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


def test_what_lets_a_class_not_use_an_installation_is_found():
    """A Python in a home, to which an environment links."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # pytest's own folders are closed
        shared, home = Path(name, "shared"), Path(name, "home")
        for folder in (shared.parent, shared, home):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o755)
        python = home / "python"
        python.touch()
        python.chmod(0o755)
        link = shared / "python"
        link.symlink_to(python)
        assert closed_to_others(link) is None
        home.chmod(0o700)
        assert closed_to_others(link) == home
        home.chmod(0o755)
        python.chmod(0o700)
        assert closed_to_others(link) == python


def test_what_ends_a_run_leaves_the_marks_that_were_given(tmp_path):
    for student in ("ana", "bob"):
        (tmp_path / f"{student}-03.ipynb").write_text("{")

    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        grade(tmp_path, tmp_path / "graded", trust=True, on_grade=stop)
    table = (tmp_path / "graded" / "points.csv").read_text()
    assert "ana-03.ipynb" in table and "bob" not in table


EMPTY = json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": []})
# What comes of a submission: reports, or an error of the judge's or of the submission's own.
OUTCOMES = {
    "ana": None,
    "bob": NoSandbox("the sandbox did not start: no room"),
    "cem": OSError("no room"),
    "dee": ValueError("It is no notebook."),
}


def test_what_the_judge_failed_at_is_in_no_total_and_marked(tmp_path, monkeypatch):
    for student in OUTCOMES:
        (tmp_path / f"{student}-02.ipynb").write_text(EMPTY)
    left = list(OUTCOMES.values())

    def checked(_, wanted, **__):
        if error := left.pop(0):
            raise error
        first, *others = wanted
        return [Report(first, unjudged="x"), *(Report(one, unfinished="y") for one in others)]

    monkeypatch.setattr(grading, "check_notebook", checked)
    grade(tmp_path, tmp_path / "graded", trust=True)
    first, *others = exercises_of("02")
    rest = sum(one.points for one in others)
    with (tmp_path / "graded" / "points.csv").open() as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    totals = {student: (row["points"], row["possible"]) for student, row in rows.items()}
    whole = f"{first.points + rest}"
    assert totals == {
        "ana": ("0", f"{rest}"),
        "bob": ("?", "0"),
        "cem": ("?", "0"),
        "dee": ("0", whole),
    }
    assert rows["ana"][first.name] == "?" and rows["ana"][others[0].name] == "0"
    assert rows["ana"]["note"].startswith(f"TO BE GRADED AGAIN: {first.name}. {first.name}: x.")
    for student in ("bob", "cem"):
        assert {rows[student][one.name] for one in (first, *others)} == {"?"}
        assert rows[student]["note"].startswith(f"TO BE GRADED AGAIN: {first.name}, ")
        assert "no room" in rows[student]["note"]
        page = (tmp_path / "graded" / "feedback" / f"{student}.md").read_text()
        assert "? of ? points" in page and "could not be judged" in page
