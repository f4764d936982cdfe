"""Every committed notebook: in its one form, in shape, fresh, and within the budget of seconds."""

from __future__ import annotations

import statistics

import pytest

from dtcourse.course import exercises, notebooks, places, reproducible, topics
from dtcourse.course import notebook as nbfile

COMMITTED = [
    pytest.param(path, id=f"{kind}/{path.name}")
    for kind in ("lessons", "solutions", "exercises")
    for path in places.notebooks(kind).values()
]
SOLUTIONS = [pytest.param(path, id=path.name) for path in places.notebooks("solutions").values()]
MEDIAN_SECONDS = 20.0
LONGEST_SECONDS = 60.0


@pytest.mark.parametrize("path", COMMITTED)
def test_in_form_fresh_and_in_shape(path):
    assert notebooks.faults(path) == []


@pytest.mark.parametrize("solution", SOLUTIONS)
def test_each_exercise_is_what_its_solution_generates(solution):
    made = exercises.make(solution, dry=True)
    assert made.what == "as before", f"run `dtcourse exercises {places.number_of(solution.name)}`"


def test_no_exercise_without_a_solution():
    assert exercises.orphans() == []


def recorded_seconds():
    """What the fastest run of each committed lesson took, as the normaliser noted it."""
    lessons = places.notebooks("lessons").values()
    return [nbfile.read(path)["metadata"]["dtcourse"]["seconds"] for path in lessons]


def test_half_of_the_lessons_are_short():
    assert statistics.median(recorded_seconds()) <= MEDIAN_SECONDS, sorted(recorded_seconds())


def test_no_lesson_takes_more_than_a_minute():
    """CI's own budget: what it can afford, whatever the machine that the seconds were recorded on."""
    assert max(recorded_seconds()) <= LONGEST_SECONDS, sorted(recorded_seconds())


def test_every_lesson_is_of_the_syllabus():
    names = set(topics.syllabus())
    assert {path.stem for path in places.notebooks("lessons").values()} <= names


def test_nbval_reads_the_table_that_the_normaliser_uses():
    path = places.PACKAGE.parent / "tests" / "notebooks" / "sanitize.cfg"
    assert path.read_text(encoding="utf-8") == reproducible.sanitize_config()


def test_nbvals_patterns_are_those_of_the_table(tmp_path):
    """ConfigParser reads the file as it was meant: no pattern is cut at a sign that means something to it."""
    import configparser

    parser = configparser.ConfigParser()  # as nbval makes it
    parser.read(places.PACKAGE.parent / "tests" / "notebooks" / "sanitize.cfg", encoding="utf-8")
    for name, pattern, stand_in in reproducible.REPLACEMENTS:
        assert parser.get(name, "regex") == pattern
        assert parser.get(name, "replace") == stand_in
