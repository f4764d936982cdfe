"""An exercise's own words, read without its checks; and a notebook without answers, which costs next to nothing."""

import ast
import subprocess
import sys
import textwrap

import pytest

from dtcourse.course import checking
from dtcourse.course import notebook as nbfile
from dtcourse.course.judging import framework, imports, outlines
from dtcourse.course.places import PACKAGE, notebooks
from tests.course.samples import DOUBLE, GOOD, IMPORTS, SHIFT, _loaded, notebook

ALL = framework.exercises()
LESSONS = sorted({one.lesson for one in ALL.values()})


def alone(code: str, *words: str) -> str:
    """What a Python of its own prints that runs this."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=PACKAGE.parent,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("lesson", LESSONS)
def test_outlines_say_what_the_exercises_are(lesson):
    found, there = outlines.outlines(lesson), framework.exercises(lesson)
    assert list(found) == list(there)
    for outline, exercise in zip(found.values(), there.values(), strict=True):
        for name in ("name", "lesson", "title", "takes", "target", "points", "modules", "launches"):
            assert getattr(outline, name) == getattr(exercise, name), f"{exercise.name}: {name}"
        said = [(check.title, check.points, check.needs) for check in outline.checks]
        assert said == [(check.title, check.points, check.needs) for check in exercise.checks]
        assert outline.load() is outline.load()
        assert outline.load().forbidden == exercise.forbidden
        assert str(framework.Report(outline, unfinished="x")) == str(
            framework.Report(exercise, unfinished="x")
        )


def _launches(module: str) -> bool:
    """Whether the text of a file of checks, or of one beside it that it imports, launches ranks."""
    text = imports._source(module)
    tree = ast.parse(text)
    calls = {_called(one) for one in ast.walk(tree) if isinstance(one, ast.Call)}
    package = module.rpartition(".")[0]
    beside = [
        f"{package}.{alias.name}" if one.module == package else one.module
        for one in ast.walk(tree)
        if isinstance(one, ast.ImportFrom) and (one.module or "").startswith(package)
        for alias in one.names
    ]
    launching = bool({"launch", "launched"} & calls) or "trials.Case(" in text
    return launching or any(map(_launches, beside))


def _called(call: ast.Call) -> str:
    return getattr(call.func, "id", getattr(call.func, "attr", ""))


def test_an_exercise_says_whether_its_checks_launch():
    assert {one.name for one in ALL.values() if one.launches} == {
        one.name for one in ALL.values() if _launches(*one.modules)
    }


def test_checks_launch_where_a_failure_is_no_verdict():
    """By own_ranks.launched: an error of launch itself would be told the answer's author as theirs."""
    found = {
        (path.stem, function.name)
        for path in (PACKAGE / "course" / "checks").rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef)
        and any(isinstance(n, ast.Call) and _called(n) == "launch" for n in ast.walk(function))
    }
    for_notebooks = ("choose_sharding", "stages", "layouts")
    assert found == {(name, "measure") for name in for_notebooks}


@pytest.fixture(scope="module")
def judge() -> tuple[list[str], str]:
    """What a judge has imported of the checks for one exercise; whether its ranks' server is its copy, and is there."""
    imported, copied = alone(
        """
        import sys
        from dtcourse.course import checking
        from dtcourse.launch import server

        one = {one.name: one for one in checking.exercises_of("04")}["choose_broadcast"]
        one.load()
        print(*sorted(name for name in sys.modules if ".checks.lesson_" in name))
        checking._start_own_ranks([one])
        print(server.is_copy(), server.pid() is not None)
        """,
    ).splitlines()
    return imported.split(), copied


def test_the_judges_own_ranks_are_copies_of_it(judge):
    """And no server of their own imports torch once more."""
    assert judge[1] == "True True"


def test_what_is_computed_cannot_be_read(tmp_path):
    file = tmp_path / "one.py"
    text = 'X = Exercise("one", lesson="00", title="x", takes=("f",), target={})\n'
    file.write_text(text.format("'1'"))
    assert outlines._read(file, "one").target == "1"
    with pytest.raises(AssertionError, match="load"):
        file.write_text(text.format("'1'") + "@X.check('holds')\ndef check_it(answer): pass\n")
        framework.judge(outlines._read(file, "one"), None)
        outlines._read(file, "one").checks[0].function(None)
    file.write_text(text.format("str(1)"))
    with pytest.raises(ValueError, match=r"one\.py: "):
        outlines._read(file, "one")


@pytest.mark.parametrize("lesson", LESSONS[:: len(LESSONS) // 3])
def test_an_untouched_copy_starts_no_process_and_imports_no_torch(lesson, tmp_path, monkeypatch):
    monkeypatch.setenv("DTCOURSE_MY", str(tmp_path))
    code = """
        import sys
        from dtcourse.cli import app
        started = []
        events = ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.exec")
        sys.addaudithook(lambda event, _: started.append(event) if event in events else None)
        app(["start", sys.argv[1]], standalone_mode=False)
        app(["check", sys.argv[1]], standalone_mode=False)
        print("torch", "torch" in sys.modules, "started", started)
    """
    said = alone(code, lesson)
    number = len(framework.exercises(lesson))
    assert f"0 of {number} exercise" in said and said.count("is not written yet") == number
    assert "torch False started []" in said


def test_only_the_exercise_that_is_checked_is_imported(judge):
    """In the judge."""
    folder = "dtcourse.course.checks.lesson_04_all_reduce_algorithms"
    assert judge[0] == [folder, f"{folder}.choose_broadcast"]


def test_the_judge_computes_in_one_thread_unless_told_otherwise():
    code = """
        import os, sys
        from dtcourse.course import checking
        from dtcourse.course.judging.sandbox import Sandbox
        os.environ.pop("OMP_NUM_THREADS", None)
        os.environ.update(eval(sys.argv[1]))
        Sandbox.begin = lambda self: sys.exit()
        function = "def states_bytes(): pass\\ndef devices_needed(): pass"
        cells = [{"cell_type": "code", "metadata": {}, "source": function}]
        try:
            checking.check_notebook({"metadata": {}, "cells": cells}, checking.exercises_of("01"))
        except SystemExit:
            import torch
            print(torch.get_num_threads())
    """
    assert alone(code, "{}").split() == ["1"]
    assert alone(code, "{'OMP_NUM_THREADS': '2'}").split() == ["2"]


def needed(exercise, *cells):
    (taken,) = [checking._take(notebook(*cells), exercise)]
    return imports.of([(exercise, taken.pieces)])


def test_a_part_of_pytorch_is_imported_where_an_answer_or_its_check_uses_it():
    plain = needed(DOUBLE, "def double(n): return 2 * n")
    assert "tests.course.samples" in plain and "torch" in plain
    assert not {*plain} & {*imports.PARTS}
    code = "import torch\ndef double(n):\n    torch.optim.SGD([n], 0.1)\n    return 2 * n"
    assert {*needed(DOUBLE, code)} & {*imports.PARTS} == {"torch._dynamo"}
    code = "from torch.distributed.fsdp import fully_shard\ndef double(n): return fully_shard(n)"
    assert "torch.distributed.fsdp" in needed(DOUBLE, code)
    said = "def double(n):\n    'Not with torch.optim.'\n    return 2 * n  # nor fully_shard"
    assert needed(DOUBLE, said) == plain


def test_a_lessons_answers_need_its_own_checks_and_what_those_import():
    for lesson in LESSONS:
        wanted = checking.exercises_of(lesson)
        solution = nbfile.read(notebooks("solutions")[lesson])
        found = imports.of([(one, checking._take(solution, one).pieces) for one in wanted])
        checks = {name for name in found if "dtcourse.course.checks." in name}
        assert {name for one in wanted for name in one.modules} <= checks
        assert {name.split(".")[3].split("_")[1] for name in checks} == {lesson}
    # DistributedDataParallel trains with the answer, in a check's own step
    assert "torch._dynamo" in imports.of([(ALL["two_way_ring"], [])])
    assert "torch._dynamo" not in imports.of([(ALL["average_uneven"], [])])


@pytest.mark.slow
def test_the_ranks_find_loaded_what_their_answers_need_and_no_more():
    from dtcourse.course.judging.bubblewrap import why_not
    from dtcourse.course.judging.sandbox import Sandbox
    from dtcourse.course.judging.taking import take

    pieces = take(notebook(IMPORTS, GOOD), SHIFT.takes)
    for chosen, others in ((imports.of([(SHIFT, pieces)]), False), (None, True)):
        with Sandbox(confined=not why_not(), imports=chosen) as sandbox:
            sandbox.load(pieces, SHIFT.takes)
            loaded = sandbox.call(_loaded)
        assert "dtcourse.collectives.p2p" in loaded and "torch.distributed" in loaded
        assert ("torch._dynamo" in loaded) == others
        assert any("checks.lesson_" in name for name in loaded) == others
