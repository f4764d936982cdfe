"""Which answers are tried: all that a change is about, and each of the others in its turn."""

import os
import subprocess

import pytest

from dtcourse.course.judging import exercises
from tests.course import rotation

LESSONS = sorted({one.lesson for one in exercises().values()})


@pytest.mark.parametrize(
    "path",
    [
        "dtcourse/course/judging/runs.py",
        "dtcourse/launch/deadlock.py",
        "dtcourse/collectives/backend/process_group.py",
        "dtcourse/events.py",
        "tests/course/test_exercises.py",
        "requirements.lock",
    ],
)
def test_what_all_stand_on_touches_all(path):
    assert (rotation.ROOT / path).is_file()
    assert all(rotation.touches(path, lesson) for lesson in LESSONS)


@pytest.mark.parametrize(
    ("path", "touched"),
    [
        ("dtcourse/course/checks/lesson_06_data_parallel/sync_batch_norm.py", ["06"]),
        ("tests/course/mutants/lesson_06_data_parallel/sync_batch_norm.py", ["06"]),
        ("solutions/06-data-parallel.ipynb", ["06"]),
        ("dtcourse/profiling/memory_tracker.py", ["15", "16"]),
        ("README.md", []),
        ("lessons/06-data-parallel.ipynb", []),
        ("dtcourse/plots/timelines.py", []),
    ],
)
def test_what_one_stands_on_touches_one(path, touched):
    assert (rotation.ROOT / path).is_file()
    found = [lesson for lesson in LESSONS if rotation.touches(path, lesson)]
    assert set(touched) <= set(found)
    if path.startswith(("README", "lessons", "solutions", "tests", "dtcourse/course/checks")):
        assert found == touched


def test_a_lessons_own_change_tries_all_of_its_answers_and_every_other_one_has_its_turn():
    for lesson in LESSONS:
        for paths, turns in (
            (["README.md"], rotation.SELDOM),
            (["README.md", "dtcourse/launch/rank.py"], rotation.TURNS),
            ([f"solutions/{lesson}-x.ipynb", "dtcourse/launch/rank.py"], 1),
        ):
            for number in (0, 7):
                commits = [f"{n:08x}" for n in range(turns)]
                said = [rotation.reason(lesson, number, paths, commit) for commit in commits]
                assert said.count("") == 1
                words = [f"lesson {lesson}", f"one of {turns}", "DTCOURSE_MUTANTS=all"]
                assert all(word in one for one in said if one for word in words)


def test_one_commit_tries_so_many_of_a_lessons_answers():
    for commit in ("00000000", "00000005"):
        tried = [
            not rotation.reason("06", n, ["dtcourse/launch/rank.py"], commit) for n in range(9)
        ]
        assert sum(tried) == 9 / rotation.TURNS


def test_all_are_tried_where_that_is_asked_for_or_nothing_is_known(monkeypatch):
    monkeypatch.setattr(rotation, "changed", list)
    monkeypatch.setattr(rotation, "_git", lambda *arguments: "00000001")
    assert any(rotation.left_out("06", number) for number in range(9))
    monkeypatch.setenv("DTCOURSE_MUTANTS", "all")
    assert not any(rotation.left_out("06", number) for number in range(9))
    monkeypatch.delenv("DTCOURSE_MUTANTS")
    monkeypatch.setattr(rotation, "changed", lambda: None)
    assert not any(rotation.left_out("06", number) for number in range(9))


def test_what_stands_on_few_files_has_its_turn_too(monkeypatch):
    monkeypatch.delenv("DTCOURSE_MUTANTS", raising=False)
    monkeypatch.setattr(rotation, "_git", lambda *arguments: "00000001")
    monkeypatch.setattr(rotation, "changed", lambda: ["lessons/scripts/a.py"])
    assert [rotation.waits(n, ("lessons/04",)) for n in range(4)] == [True, True, False, True]
    assert not any(rotation.waits(n, ("lessons/04", "lessons/scripts/")) for n in range(4))
    monkeypatch.setenv("DTCOURSE_MUTANTS", "all")
    assert not any(rotation.waits(n, ("lessons/04",)) for n in range(4))


@pytest.mark.parametrize(
    ("hours_ago", "lately"),
    [
        ([9] * 5 + [0] * 4, None),  # of nine commits none is the tenth
        ([20] * 5 + [9] * 10, 10),  # ten at least
        ([9] * 5 + [1] * 12, 12),  # pushed at once
        ([9] * 5 + [4] * 4 + [2] * 3, 10),
    ],
)
def test_what_has_changed_lately_is_all_that_is_pushed_at_once(
    tmp_path, monkeypatch, hours_ago, lately
):
    def git(*words, at=0):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        date = {"GIT_COMMITTER_DATE": f"{1_790_000_000 - at * 3600} +0000"}
        subprocess.run(["git", *who, *words], cwd=tmp_path, env=os.environ | date, check=True)

    git("init", "-q")
    for number, hours in enumerate(hours_ago):
        (tmp_path / str(number)).touch()
        git("add", ".")
        git("commit", "-q", "-m", "one more", at=hours)
    monkeypatch.setattr(rotation, "ROOT", tmp_path)
    monkeypatch.setattr(rotation, "_git", rotation._git.__wrapped__)
    found = rotation.changed.__wrapped__()
    assert (found and len(found)) == lately
