"""A student's copies in my/: what is made, what is found, what is never touched."""

from __future__ import annotations

import json
import re

import pytest

from dtcourse.course import authoring, exercises, grading, places, workspace
from dtcourse.course import notebook as nbfile

LESSON = """\
# %% [markdown] id=title
# # 03 · Collectives
# See [lesson 04](04-more.ipynb#sums), ![a ring](pictures/a%20ring.png), [its exercises](../exercises/03-sums.ipynb),
# [PyTorch](https://pytorch.org/x.ipynb), [below](#sums), [not yet](05-later.ipynb), `f[0](x)`,
# <img src="pictures/a%20ring.png">.

# %% [markdown] id=predict
# How many? <details><summary>Answer</summary>Three.</details>

# %% id=parameters tags=parameters
WORLD_SIZE = 2

# %% id=sums topics=03.reduce hidden
print(1 + WORLD_SIZE)
"""
SOLUTION = """\
# %% [markdown] id=title
# # 03 · Exercises

# %% id=double solution=double
def double(n):
    ### BEGIN SOLUTION
    return 2 * n
    ### END SOLUTION

# %% id=check-double check=check_double points=2
check("double", double)
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A course with lesson 03 (executed, with exercises) and lesson 04 (without)."""
    lesson = authoring.build(LESSON)
    lesson["cells"][-1].update(
        execution_count=1, outputs=[{"output_type": "stream", "name": "stdout", "text": "3\n"}]
    )
    lesson["metadata"]["dtcourse"] = {"code": "0" * 16, "seconds": 1}
    nbfile.write(lesson, tmp_path / "lessons" / "03-sums.ipynb")
    nbfile.write(authoring.build(LESSON), tmp_path / "lessons" / "04-more.ipynb")
    (tmp_path / "lessons" / "pictures").mkdir()
    (tmp_path / "lessons" / "pictures" / "a ring.png").write_bytes(b"")
    nbfile.write(authoring.build(SOLUTION), tmp_path / "solutions" / "03-sums.ipynb")
    exercises.make(tmp_path / "solutions" / "03-sums.ipynb")
    monkeypatch.setenv("DTCOURSE_HOME", str(tmp_path))
    return tmp_path


def update(home, kind, old, new):
    """The course changes a notebook, as a `git pull` would."""
    path = places.notebooks(kind)["03"]
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def names(copies):
    return [(copy.name, copy.kind, copy.new, copy.outdated) for copy in copies]


def test_both_are_made_side_by_side_and_the_second_time_neither(home):
    lesson, answers = "my/03-lesson-sums.ipynb", "my/03-exercises-sums.ipynb"
    assert names(workspace.start("03")) == [
        (lesson, "lesson", True, False),
        (answers, "exercises", True, False),
    ]
    before = {path: path.read_bytes() for path in (home / "my").iterdir()}
    assert sorted(path.name for path in before) == [answers[3:], lesson[3:]]
    assert names(workspace.start("03")) == [
        (lesson, "lesson", False, False),
        (answers, "exercises", False, False),
    ]
    assert {path: path.read_bytes() for path in (home / "my").iterdir()} == before
    assert (home / answers).read_bytes() == (home / "exercises" / "03-sums.ipynb").read_bytes()


def test_the_lesson_is_the_lesson_without_what_it_printed(home):
    (copy, _) = workspace.start("03")
    mine, theirs = nbfile.read(copy.path), nbfile.read(home / "lessons" / "03-sums.ipynb")
    assert [cell["id"] for cell in mine["cells"]] == [cell["id"] for cell in theirs["cells"]]
    for own, committed in zip(mine["cells"], theirs["cells"], strict=True):
        assert own["metadata"] == committed["metadata"]
        if own["cell_type"] == "code":
            assert (own["outputs"], own["execution_count"]) == ([], None)
            assert own["source"] == committed["source"]
    assert mine["cells"][1]["source"] == theirs["cells"][1]["source"]  # the folded answer
    assert copy.path.read_text() == nbfile.dumps(mine)  # as JupyterLab writes it
    assert workspace.is_lesson(mine) and not workspace.is_lesson(theirs)


def test_links_lead_from_my_to_what_they_led_to(home):
    (copy, _) = workspace.start("03")
    text = nbfile.read(copy.path)["cells"][0]["source"]
    for link in (
        "[lesson 04](../lessons/04-more.ipynb#sums)",
        "![a ring](../lessons/pictures/a%20ring.png)",
        '<img src="../lessons/pictures/a%20ring.png">',
        "[its exercises](03-exercises-sums.ipynb)",
        "[PyTorch](https://pytorch.org/x.ipynb), [below](#sums), [not yet](05-later.ipynb), `f[0](x)`",
    ):
        assert link in text


def test_what_is_missing_is_made_and_what_is_there_stays(home):
    first, second = workspace.start("03")
    for gone, kept in ((first, second), (second, first)):
        kept.path.write_text("my work")
        gone.path.unlink()
        made = {copy.kind: copy.new for copy in workspace.start("03")}
        assert made == {gone.kind: True, kept.kind: False}
        assert kept.path.read_text() == "my work"


def test_a_lesson_without_exercises_has_one_copy(home):
    assert names(workspace.start("04")) == [("my/04-lesson-more.ipynb", "lesson", True, False)]


def test_exercises_under_their_old_name_are_the_exercises(home):
    old = home / "my" / "03-sums.ipynb"
    old.parent.mkdir()
    work = (home / "exercises" / "03-sums.ipynb").read_text().replace("NotImpl", "MyOwn")
    old.write_text(work)
    assert names(workspace.start("03")) == [
        ("my/03-lesson-sums.ipynb", "lesson", True, False),
        ("my/03-sums.ipynb", "exercises", False, False),
    ]
    assert workspace.find("3") == ("03", old) and old.read_text() == work
    assert sorted(path.name for path in old.parent.iterdir()) == [
        "03-lesson-sums.ipynb",
        "03-sums.ipynb",
    ]
    assert workspace.own() == {"03": sorted(old.parent.iterdir())}
    # Who has both works in the newer one.
    newer = old.with_name("03-exercises-sums.ipynb")
    newer.write_text(work)
    assert workspace.find("03") == ("03", newer)


@pytest.mark.parametrize("kind", ["lesson", "exercises"])
def test_a_copy_from_when_the_kind_stood_last_is_that_copy(home, kind):
    workspace.start("03")
    now = home / "my" / f"03-{kind}-sums.ipynb"
    before = now.rename(now.with_name(f"03-sums-{kind}.ipynb"))
    work = before.read_bytes()
    copies = {copy.kind: (copy.name, copy.new) for copy in workspace.start("03")}
    assert copies[kind] == (f"my/{before.name}", False)
    assert before.read_bytes() == work and not now.exists()
    if kind == "exercises":
        assert workspace.find("03") == ("03", before)
    other = places.notebooks("lessons")["04"]
    assert workspace.place("lesson", other).name == "04-lesson-more.ipynb"
    lettered = other.with_name("14b-half-precision.ipynb")
    assert workspace.place("lesson", lettered).name == "14b-lesson-half-precision.ipynb"


def test_the_two_differ_where_a_file_browser_still_shows_them(home):
    """JupyterLab's shows about 15 letters."""
    for number in ("03", "04"):
        workspace.start(number)
    shown = [path.name[:14] for path in (home / "my").iterdir()]
    assert len(set(shown)) == len(shown) == 3


@pytest.mark.parametrize("kind", ["lesson", "exercises"])
def test_a_copy_knows_when_the_course_has_changed(home, kind):
    workspace.start("03")
    before = {path: path.read_bytes() for path in (home / "my").iterdir()}
    update(home, workspace.KINDS[kind], "03 ·", "Lesson 03 ·")
    assert {copy.kind: copy.outdated for copy in workspace.start("03")} == {
        "lesson": kind == "lesson",
        "exercises": kind == "exercises",
    }
    assert {path: path.read_bytes() for path in (home / "my").iterdir()} == before
    # Renamed, it is kept, and a fresh one is made.
    mine = home / "my" / f"03-{kind}-sums.ipynb"
    mine.rename(mine.with_name("old-03.ipynb"))
    made = {copy.kind: (copy.new, copy.outdated) for copy in workspace.start("03")}
    assert made[kind] == (True, False)


def test_a_lesson_that_was_only_executed_anew_has_not_changed(home):
    workspace.start("03")
    update(home, "lessons", '"3\\n"', '"4\\n"')
    assert not any(copy.outdated for copy in workspace.start("03"))


def test_a_copy_saved_by_a_student_still_knows(home):
    """Answers, outputs and JupyterLab's own metadata do not hide what it was made from."""
    _, answers = workspace.start("03")
    notebook = nbfile.read(answers.path)
    notebook["cells"][1]["source"] = "def double(n):\n    return 2 * n"
    notebook["cells"].append(
        {"cell_type": "code", "id": "a", "metadata": {}, "source": "1", "outputs": []}
    )
    nbfile.write(notebook, answers.path)
    assert not workspace.start("03")[1].outdated
    update(home, "exercises", "03 ·", "Lesson 03 ·")
    assert workspace.start("03")[1].outdated
    answers.path.write_text("<<<<<<< conflict")
    assert not workspace.start("03")[1].outdated  # who knows


def test_a_file_in_the_way_gets_a_sentence(home):
    (home / "my").write_text("")
    with pytest.raises(ValueError, match=r"copies cannot be made in .*my: "):
        workspace.start("03")


def test_a_link_that_leads_nowhere_is_not_written_through(home):
    (home / "my").mkdir()
    (home / "my" / "03-lesson-sums.ipynb").symlink_to(home / "elsewhere.ipynb")
    assert [copy.new for copy in workspace.start("03")] == [False, True]
    assert not (home / "elsewhere.ipynb").exists()


def test_a_copy_of_a_lesson_is_not_graded(home):
    copy, _ = workspace.start("03")
    with pytest.raises(ValueError, match="a copy of the lesson; its exercises are a notebook"):
        grading.check_notebook(nbfile.read(copy.path), [])
    handed_in = home / "handed-in"
    (handed_in / "ana").mkdir(parents=True)
    (handed_in / "ana" / copy.path.name).write_bytes(copy.path.read_bytes())
    (grade,) = grading.grade(handed_in, home / "graded", lesson="03", trust=True)
    assert (grade.student, grade.points) == ("ana", 0) and "copy of the lesson" in grade.refused


@pytest.mark.parametrize("number", sorted(places.notebooks("lessons")))
def test_every_lesson_of_the_course_can_be_started(tmp_path, monkeypatch, number):
    """From the real notebooks; nothing in their copies leads to a file that is not there."""
    for folder in ("lessons", "exercises"):
        (tmp_path / folder).symlink_to(places.home() / folder)
    monkeypatch.setenv("DTCOURSE_HOME", str(tmp_path))
    copies = workspace.start(number)
    assert copies[0].kind == "lesson" and all(copy.new for copy in copies)
    for copy in copies:
        notebook = nbfile.read(copy.path)
        assert not any(cell.get("outputs") for cell in notebook["cells"])
        assert workspace.is_lesson(notebook) == (copy.kind == "lesson")
        assert json.loads(copy.path.read_text())["metadata"]["language_info"]
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                for link in re.findall(r"\]\(([^)#]+\.(?:ipynb|png|svg|py|md))", cell["source"]):
                    assert "://" in link or (copy.path.parent / link).exists(), link


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("ana-02-processes.ipynb", "02"),
        ("02.ipynb", "02"),
        ("02b.ipynb", "02"),
        ("ana-14.ipynb", "14"),
        ("ana-14b.ipynb", "14b"),
        ("14b-half-precision-exercises.ipynb", "14b"),
        ("ana_14b_half.ipynb", "14b"),
        ("14best.ipynb", "14"),
        ("2026-14b-ana.ipynb", "14b"),
    ],
)
def test_the_lesson_in_the_name_of_a_submission(monkeypatch, name, number):
    there = dict.fromkeys(("02", "14", "14b", "15"), places.PACKAGE)
    monkeypatch.setattr(places, "notebooks", lambda kind="lessons": there)
    assert workspace.number_in(name) == number


def test_a_lesson_with_a_letter_follows_its_number(tmp_path, monkeypatch):
    monkeypatch.setenv("DTCOURSE_HOME", str(tmp_path))
    names = ["15-c.ipynb", "14b-b.ipynb", "14-a.ipynb", "14-bis.txt", "140-x.ipynb", "14bb-x.ipynb"]
    (tmp_path / "lessons").mkdir()
    for name in names:
        (tmp_path / "lessons" / name).touch()
    assert list(places.notebooks("lessons")) == ["14", "14b", "15"]
