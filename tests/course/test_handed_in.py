"""A folder in which a class hands in: a file costs its author alone, and none brings what is not its author's."""

from __future__ import annotations

import csv
import json
import os
import tempfile
import threading
import tracemalloc
from pathlib import Path

import pytest

from dtcourse.course import handed_in, marks
from dtcourse.course.grading import grade
from dtcourse.course.handed_in import LARGEST, submissions
from dtcourse.course.marks import Grade, write

NOTEBOOK = json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": []}).encode()
STUDENT = 65_534  # nobody, where the tests run as root
ROOT = os.geteuid() == 0


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "hand-in"
    made.mkdir()
    (made / "ana-02-good.ipynb").write_bytes(NOTEBOOK)
    return made


def by_file(found):
    return {one.file: one for one in found}


def test_a_huge_file_is_refused_by_itself_and_is_not_read(folder):
    with (folder / "ben-02-huge.ipynb").open("wb") as file:
        file.truncate(40 << 30)
    tracemalloc.start()
    found = by_file(submissions(folder))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2 * LARGEST
    assert found["ana-02-good.ipynb"].data == NOTEBOOK
    assert found["ben-02-huge.ipynb"].refused.startswith(
        "This file has 42,949,672,960 bytes, and a notebook may have"
    )


def test_so_is_one_that_grows_while_it_is_read(folder, monkeypatch):
    (folder / "ben-02.ipynb").write_bytes(b"x" * 30)
    monkeypatch.setattr(handed_in, "LARGEST", 20)
    sizes = os.stat_result(
        (0o100644, 1, 1, 1, os.geteuid(), 0, 10, 0, 0, 0)
    )  # what fstat said before
    monkeypatch.setattr(handed_in.os, "fstat", lambda _: sizes)
    assert (
        "21 bytes, and a notebook may have 20"
        in by_file(submissions(folder))["ben-02.ipynb"].refused
    )


def test_one_user_may_hand_in_so_many_bytes_and_no_more(folder, monkeypatch):
    for number in range(4):
        (folder / f"ben-02-{number}.ipynb").write_bytes(NOTEBOOK)
    monkeypatch.setattr(handed_in, "MOST", 3 * len(NOTEBOOK))
    assert not any(one.refused for one in submissions(folder)), (
        "whoever grades has put all there, and trusts it"
    )
    monkeypatch.setattr(handed_in.os, "geteuid", lambda: 12_345)
    found = submissions(folder)
    assert [bool(one.refused) for one in found] == [False] * 3 + [True] * 2
    assert not found[-1].data


@pytest.mark.skipif(not ROOT, reason="needs to be root, to try it as two users")
@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_is_closed_is_refused_by_itself(what):
    """Whoever grades is not root: a process of another user reads what root has closed."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # pytest's own folders are closed
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "ana-02-good.ipynb").write_bytes(NOTEBOOK)
        closed = folder / ("ben" if what == "folder" else "ben-02.ipynb")
        if what == "folder":
            closed.mkdir()
        else:
            closed.write_bytes(NOTEBOOK)
        closed.chmod(0o700 if what == "folder" else 0o600)
        found = as_student(lambda: {one.file: one.refused for one in submissions(folder)})
    assert found["ana-02-good.ipynb"] == ""
    refused = found["ben/" if what == "folder" else "ben-02.ipynb"]
    assert f"This {what} could not be read (Permission denied): hand it in readable" in refused


def as_student(call):
    """What a call answers in a process of a user who is not root, as JSON."""
    reads, writes = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.setgroups([])
            os.setgid(STUDENT)
            os.setuid(STUDENT)
            with open(writes, "w") as pipe:
                json.dump(call(), pipe)
        finally:
            os._exit(0)
    os.close(writes)
    with open(reads) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text)


def test_a_name_that_is_no_text_or_holds_an_escape_is_shown_with_its_codes(folder, tmp_path):
    for name in (b"ben-02-\xff.ipynb", b"eve-02-\x1b[31mred.ipynb", b"fay\n-02.ipynb"):
        (folder / os.fsdecode(name)).write_bytes(NOTEBOOK)
    found = by_file(submissions(folder))
    assert [*found] == [
        r"ana-02-good.ipynb",
        r"ben-02-\udcff.ipynb",
        r"eve-02-\x1b[31mred.ipynb",
        r"fay\n-02.ipynb",
    ]
    grade(folder, tmp_path / "graded", trust=True)
    with (tmp_path / "graded" / "points.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows] == [*found]
    assert len(list((tmp_path / "graded" / "feedback").iterdir())) == 4
    assert all(text.isprintable() for row in rows for text in row.values())


@pytest.mark.parametrize("kind", ["link", "link of a folder", "pipe", "hidden", "deep"])
def test_what_is_no_file_of_its_author_is_passed_over(folder, tmp_path, kind):
    secret = tmp_path / "solutions"
    secret.mkdir()
    (secret / "02-solution.ipynb").write_bytes(NOTEBOOK)
    if kind == "link":
        (folder / "eve-02.ipynb").symlink_to(secret / "02-solution.ipynb")
    elif kind == "link of a folder":
        (folder / "eve").symlink_to(secret)
    elif kind == "pipe":
        os.mkfifo(folder / "eve-02.ipynb")
    elif kind == "hidden":
        (folder / ".eve-02.ipynb").write_bytes(NOTEBOOK)
    else:
        deep = folder.joinpath(*["x"] * 50)
        deep.mkdir(parents=True)
        (deep / "eve-02.ipynb").write_bytes(NOTEBOOK)
    assert [*by_file(submissions(folder))] == ["ana-02-good.ipynb"]


def test_a_link_that_is_swapped_in_while_the_folder_is_read_brings_nothing(folder, tmp_path):
    """A swapper exchanges six notebooks with links to a solution, again and again, while the folder is read 400 times.

    Looking first and opening then read the solution in 0.65 % of all files.
    """
    solution = tmp_path / "solution.ipynb"
    solution.write_bytes(b"SOLUTION")
    names = [folder / f"eve-02-{number}.ipynb" for number in range(6)]
    for name in names:
        name.write_bytes(NOTEBOOK)
    stop = threading.Event()

    def swap() -> None:
        aside = tmp_path / "aside.ipynb"
        while not stop.is_set():
            for name in names:
                aside.symlink_to(solution)
                os.replace(aside, name)
                aside.write_bytes(NOTEBOOK)
                os.replace(aside, name)

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        read = {one.data for _ in range(400) for one in submissions(folder)}
    finally:
        stop.set()
        swapper.join()
    assert read <= {NOTEBOOK, b""}


@pytest.mark.skipif(not ROOT, reason="needs to be root, to hand in as another user")
def test_the_owner_stands_beside_whoever_the_name_says(folder, tmp_path):
    os.chown(folder / "ana-02-good.ipynb", STUDENT, STUDENT)
    grade(folder, tmp_path / "graded", trust=True)
    with (tmp_path / "graded" / "points.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["student"], row["owner"]) == ("ana", handed_in.name_of(STUDENT))
    assert row["owner"] != handed_in.name_of(0)


# --- where marks go ----------------------------------------------------------------------------------------------


def test_marks_are_whole_or_as_they_were(tmp_path, monkeypatch):
    write([Grade("ana", "ana-02.ipynb", "02", refused="first")], tmp_path)
    before = (tmp_path / "points.csv").read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(marks.os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write([Grade("ana", "ana-02.ipynb", "02", refused="second")], tmp_path)
    assert (tmp_path / "points.csv").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["feedback", "points.csv"]


def test_marks_can_hold_what_is_no_text(tmp_path):
    write([Grade("a\udcff", "a\udcff-02.ipynb", "02", refused="it says \ud800")], tmp_path)
    assert r"it says \ud800" in (tmp_path / "points.csv").read_text()


def test_marks_do_not_go_where_somebody_else_has_put_a_link(folder, tmp_path):
    (folder / "graded").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="that is a link: give --out a folder of your own"):
        grade(folder, folder / "graded", trust=True)


@pytest.mark.skipif(not ROOT, reason="needs to be root, to make another user's folder")
def test_nor_to_somebody_elses_folder(folder):
    (folder / "graded").mkdir()
    os.chown(folder / "graded", STUDENT, STUDENT)
    with pytest.raises(ValueError, match=r"a folder of .*'s: give --out a folder of your own"):
        grade(folder, folder / "graded", trust=True)


def test_students_with_long_names_have_a_page_each(tmp_path):
    names = ["a" * 200 + end for end in "xy"]
    write([Grade(name, f"{name}.ipynb", refused="none") for name in names], tmp_path)
    assert len(list((tmp_path / "feedback").iterdir())) == 2
