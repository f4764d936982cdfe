"""Every exercise of the course: its solution passes and so do other right answers, each plausible wrong answer is
rejected with the sentence that helps, and the untouched exercise fails politely. Answers are in mutants/, in a file
each as the checks are:

    MUTANTS    [(name, words of the sentence that rejects it, answer)]
    ACCEPTED   [(name, answer)]: right, and another way than the solution's
    NOTHING    [(name, answer)]: does nothing, or has it done by what is there already; earns no point
    NAMED      the name of the wrong answer that is tried most often; the first, where this is not there

An answer is code, or edits of the solution's own cell: ((right, wrong), ...). Answers take turns (tests/rotation.py):
in each run of CI all of a lesson of which something has changed, and of the others a third of the named ones and of
the solutions, which begin first.
"""

from __future__ import annotations

import ast
import copy
import importlib.util
import itertools
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dtcourse.course import checks, places
from dtcourse.course import notebook as nbfile
from dtcourse.course.grading import check_in
from dtcourse.course.judging import Exercise, Report, bubblewrap, exercises, forbidden, judge
from dtcourse.course.judging.defining import define
from dtcourse.course.judging.framework import Refused, Unfinished, Verdict
from dtcourse.course.judging.runs import InKernel
from dtcourse.course.judging.sandbox import Sandbox
from dtcourse.course.judging.taking import take
from dtcourse.launch import standby
from tests import kept_ranks, rotation
from tests.course.edits import edited

MUTANTS = Path(__file__).with_name("mutants")
ENOUGH, ENOUGH_ACCEPTED = 3, 2
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SOLUTIONS = places.notebooks("solutions")
EXERCISES = places.notebooks("exercises")
ALL = exercises()


@cache
def answers(exercise: str, kind: str) -> Any:
    """What the file of an exercise's answers has under a name: MUTANTS, ACCEPTED, NOTHING or NAMED."""
    folder = Path(sys.modules[ALL[exercise].checks[0].function.__module__].__file__).parent.name
    path = MUTANTS / folder / f"{exercise}.py"
    if not path.is_file():
        return []
    spec = importlib.util.spec_from_file_location(f"mutants_{exercise}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, kind, [])


def written(exercise: Exercise, answer: str | tuple[tuple[str, str], ...]) -> str:
    """An answer's code: its own, or the solution's cell with its edits, each of which is at one place there."""
    if isinstance(answer, str):
        return answer
    notebook = nbfile.read(SOLUTIONS[exercise.lesson])
    (code,) = (
        cell["source"]
        for cell in notebook["cells"]
        if "BEGIN SOLUTION" in cell["source"] and exercise.takes[0] in defined(cell["source"])
    )
    return edited(code, *answer)


def with_mutant(notebook: dict, code: str) -> dict:
    """The solution's notebook with the mutant in place of the solution cells that define the same names."""
    changed = copy.deepcopy(notebook)
    names = defined(code)
    for cell in changed["cells"]:
        if "BEGIN SOLUTION" in cell["source"] and defined(cell["source"]) & names:
            cell["source"] = ""
    cell = {
        "cell_type": "code",
        "metadata": {},
        "source": code,
        "outputs": [],
        "execution_count": None,
    }
    changed["cells"].append(cell)
    return changed


def defined(code: str) -> set[str]:
    """The functions and classes that some code defines at its top level."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.parse(code).body if isinstance(node, kinds)}


class Enough(Exception):
    """A check has said what was to be heard: the others need not run."""


def put(exercise: Exercise, notebook: dict, wanted: str | None = None) -> Report:
    """Judge an answer that we trust: on ranks, but without a process of its own, which takes seconds to start.
    The ranks are those of the answer before, where it has left nothing in them (launch/again.py).

    wanted: raise Enough as soon as a check fails with a sentence that has this in it
    """

    def heard(verdict: Verdict) -> None:
        if wanted is not None and not verdict.passed and wanted in str(verdict):
            raise Enough

    try:
        pieces = take(notebook, exercise.takes)
        if refused := forbidden.found(pieces, exercise.forbidden):
            raise Refused(refused)
        functions = define(pieces, exercise.takes)
    except Unfinished as error:
        return Report(exercise, unfinished=str(error))
    except Refused as error:
        return Report(exercise, refused=str(error))
    return judge(exercise, InKernel(functions), on_verdict=heard)


@pytest.fixture(scope="module", autouse=True)
def ranks_that_stay():
    """What judging costs is launching: ranks come from a template, once there is one, and serve many answers."""
    kept_ranks.come_from_template(60)
    with standby.keeping():
        yield


# What an answer's verdict comes from first of all.
OWN = ("dtcourse/course/checks/lesson_{}_", "tests/course/mutants/lesson_{}_", "solutions/{}-")
_places, _early = itertools.count(), itertools.count()


def early(lesson: str, place: int) -> pytest.MarkDecorator:
    """For a lesson's few tests that say most: a third of all in each run, before the others of that run."""
    files = (one.format(lesson) for one in OWN)
    return pytest.mark.stands_on(*files, place=place, share=rotation.THIRD, early=True)


def named(exercise: Exercise) -> str:
    """The wrong answer that is tried most often."""
    return answers(exercise.name, "NAMED") or answers(exercise.name, "MUTANTS")[0][0]


def every(kind: str) -> list:
    """All answers of one kind, as a test's parameters."""
    return [
        pytest.param(
            exercise,
            *answer,
            id=f"{exercise.lesson}-{exercise.name}-{answer[0]}",
            marks=early(exercise.lesson, next(_early))
            if kind == "MUTANTS" and answer[0] == named(exercise)
            else pytest.mark.stands_on(
                *(one.format(exercise.lesson) for one in OWN), place=next(_places), share=(2, 3)
            ),
        )
        for exercise in ALL.values()
        for answer in answers(exercise.name, kind)
    ]


EVERY_EXERCISE = [pytest.param(one, id=f"{one.lesson}-{one.name}") for one in ALL.values()]


@pytest.fixture(scope="module")
def sandbox():
    """A process for all solutions that one worker tries, since it takes seconds to start."""
    with Sandbox(3600, confined=not bubblewrap.why_not()) as started:
        yield started


ALWAYS = ("02", "16b")  # each run sees that solutions pass where they are judged


@pytest.mark.parametrize(
    "lesson",
    [
        # Not those that are executed as notebooks in the same run (tools/test.py).
        pytest.param(lesson, marks=() if lesson in ALWAYS else early(lesson, place + 1))
        for place, lesson in enumerate(sorted({one.lesson for one in ALL.values()}))
    ],
)
def test_the_solutions_pass(lesson, sandbox):
    """In a process of their own, as they are graded."""
    wanted = exercises(lesson).values()
    reports = check_in(sandbox, nbfile.read(SOLUTIONS[lesson]), wanted)
    assert [report.exercise for report in reports] == list(wanted)
    for report in reports:
        assert report.passed and report.points == report.exercise.points, str(report)


@pytest.mark.parametrize("exercise", EVERY_EXERCISE)
def test_the_untouched_exercise_fails_politely(exercise):
    report = put(exercise, nbfile.read(EXERCISES[exercise.lesson]))
    assert report.points == 0
    assert "not written yet" in report.unfinished, str(report)


@pytest.mark.parametrize(("exercise", "name", "answer"), every("ACCEPTED"))
def test_other_right_answers_pass(exercise, name, answer):
    solution = nbfile.read(SOLUTIONS[exercise.lesson])
    report = put(exercise, with_mutant(solution, written(exercise, answer)))
    assert report.passed, f"{name}: {report}"


@pytest.mark.parametrize(("exercise", "name", "answer"), every("NOTHING"))
def test_what_does_nothing_earns_nothing(exercise, name, answer):
    solution = nbfile.read(SOLUTIONS[exercise.lesson])
    report = put(exercise, with_mutant(solution, written(exercise, answer)))
    assert report.points == 0 and not report.passed, f"{name}: {report}"


@pytest.mark.parametrize(("exercise", "name", "fragment", "answer"), every("MUTANTS"))
def test_each_wrong_answer_is_rejected_with_the_sentence_that_helps(
    exercise, name, fragment, answer
):
    solution, code = nbfile.read(SOLUTIONS[exercise.lesson]), written(exercise, answer)
    assert defined(code) & set(exercise.takes), f"{name} defines none of {exercise.takes}"
    try:
        report = put(exercise, with_mutant(solution, code), wanted=fragment)
    except Enough:
        return
    assert not report.passed, f"{name} passes"
    assert fragment in str(report), str(report)
    assert name != named(exercise) or not report.refused, "no check has run: name another one"


@pytest.mark.parametrize("exercise", EVERY_EXERCISE)
def test_every_exercise_has_points_checks_and_enough_answers(exercise):
    assert exercise.checks and all(check.points > 0 for check in exercise.checks)
    found = answers(exercise.name, "MUTANTS")
    assert answers(exercise.name, "NOTHING"), "what if it does nothing?"
    others = answers(exercise.name, "ACCEPTED")
    assert len(others) >= ENOUGH_ACCEPTED, f"{exercise.name}: {len(others)} other right answers"
    assert len(found) >= ENOUGH, f"{exercise.name} has {len(found)} mutants; {ENOUGH} are the least"
    assert len({answer for *_, answer in found}) == len(found)
    assert all(len(fragment) >= 4 for _, fragment, _ in found)
    assert named(exercise) in [name for name, *_ in found]


@pytest.mark.parametrize("lesson", sorted({one.lesson for one in ALL.values()}))
def test_the_notebooks_check_every_exercise_for_its_points(lesson):
    notebook = nbfile.read(EXERCISES[lesson])
    graded = {
        cell["id"]: cell
        for cell in notebook["cells"]
        if cell["metadata"].get("nbgrader", {}).get("grade")
    }
    for exercise in exercises(lesson).values():
        calls = [
            cell
            for cell in graded.values()
            if f'"{exercise.name}"' in cell["source"]
            or f"check({exercise.takes[0]}" in cell["source"]
        ]
        assert len(calls) == 1, f"{exercise.name} is checked in {len(calls)} graded cells"
        assert calls[0]["metadata"]["nbgrader"]["points"] == exercise.points


@pytest.mark.parametrize("exercise", EVERY_EXERCISE)
def test_the_exercise_says_what_is_refused(exercise):
    """In the text above its cell, in the words that the check's own list gives."""
    text = ""
    for cell in nbfile.read(EXERCISES[exercise.lesson])["cells"]:
        if cell["cell_type"] == "markdown":
            text = cell["source"]
        elif exercise.takes[0] in defined(cell["source"]):
            break
    words = forbidden.in_words(exercise.forbidden)
    assert words in text, f"solutions/{exercise.lesson}-...ipynb has to say: {words}"
    assert text.count("is refused") == bool(words), "refused by the text, and by no check"


def test_mutants_belong_to_exercises():
    there = {path.relative_to(MUTANTS) for path in MUTANTS.glob("*/*.py")}
    files = [sys.modules[one.checks[0].function.__module__].__file__ for one in ALL.values()]
    assert there == {Path(*Path(file).parts[-2:]) for file in files}


def test_every_file_of_checks_is_an_exercise():
    for path in Path(checks.__file__).parent.glob("lesson_*/*.py"):
        if "Exercise(" in path.read_text(encoding="utf-8"):
            assert path.stem in ALL, path


def test_folders_of_checks_are_called_like_the_notebooks():
    names = {path.name for path in Path(checks.__file__).parent.glob("lesson_*")}
    assert names == {f"lesson_{path.stem.replace('-', '_')}" for path in SOLUTIONS.values()}
