"""Every exercise of the course: its solution passes, each plausible wrong answer is rejected with the sentence that
helps, and the untouched exercise fails politely. Mutants are in tests/course/mutants/lesson_NN.py."""

from __future__ import annotations

import ast
import copy
import importlib.util
from pathlib import Path

import pytest

from dtcourse.course import notebook as nbfile
from dtcourse.course import places
from dtcourse.course.checks import Exercise, Report, exercises, judge
from dtcourse.course.checks.framework import Unfinished
from dtcourse.course.checks.runs import InKernel
from dtcourse.course.checks.sandbox import define
from dtcourse.course.checks.taking import take
from dtcourse.course.grading import check_notebook

MUTANTS = Path(__file__).with_name("mutants")
ENOUGH = 3
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SOLUTIONS = places.notebooks("solutions")
EXERCISES = places.notebooks("exercises")
ALL = exercises()


def mutants(lesson: str) -> dict[str, list[tuple[str, str, str]]]:
    """{exercise: [(name, fragment of the sentence, code)]} of a lesson."""
    path = MUTANTS / f"lesson_{lesson}.py"
    if not path.is_file():
        return {}
    spec = importlib.util.spec_from_file_location(f"mutants_{lesson}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MUTANTS


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


def put(exercise: Exercise, notebook: dict) -> Report:
    """Judge an answer that we trust: on ranks, but without a process of its own, which takes seconds to start."""
    try:
        functions = define(take(notebook, exercise.takes), exercise.takes)
    except Unfinished as error:
        return Report(exercise, unfinished=str(error))
    return judge(exercise, InKernel(functions))


EVERY_MUTANT = [
    pytest.param(exercise, *mutant, id=f"{exercise.lesson}-{exercise.name}-{mutant[0]}")
    for exercise in ALL.values()
    for mutant in mutants(exercise.lesson).get(exercise.name, [])
]
EVERY_EXERCISE = [pytest.param(one, id=f"{one.lesson}-{one.name}") for one in ALL.values()]


@pytest.mark.parametrize("exercise", EVERY_EXERCISE)
def test_the_solution_passes(exercise):
    report = check_notebook(nbfile.read(SOLUTIONS[exercise.lesson]), [exercise])[0]
    assert report.passed and report.points == exercise.points, str(report)


@pytest.mark.parametrize("exercise", EVERY_EXERCISE)
def test_the_untouched_exercise_fails_politely(exercise):
    report = put(exercise, nbfile.read(EXERCISES[exercise.lesson]))
    assert report.points == 0
    assert "not written yet" in report.unfinished, str(report)


@pytest.mark.parametrize(("exercise", "name", "fragment", "code"), EVERY_MUTANT)
def test_each_wrong_answer_is_rejected_with_the_sentence_that_helps(exercise, name, fragment, code):
    solution = nbfile.read(SOLUTIONS[exercise.lesson])
    assert defined(code) & set(exercise.takes), f"{name} defines none of {exercise.takes}"
    report = put(exercise, with_mutant(solution, code))
    assert not report.passed, f"{name} passes"
    assert fragment in str(report), str(report)


@pytest.mark.parametrize("exercise", EVERY_EXERCISE)
def test_every_exercise_has_points_checks_and_enough_mutants(exercise):
    assert exercise.checks and all(check.points > 0 for check in exercise.checks)
    found = mutants(exercise.lesson).get(exercise.name, [])
    assert len(found) >= ENOUGH, f"{exercise.name} has {len(found)} mutants; {ENOUGH} are the least"
    assert len({code for *_, code in found}) == len(found)
    assert all(len(fragment) >= 4 for _, fragment, _ in found)


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


def test_mutants_belong_to_exercises():
    for path in MUTANTS.glob("lesson_*.py"):
        lesson = path.stem.removeprefix("lesson_")
        assert set(mutants(lesson)) <= set(exercises(lesson))
