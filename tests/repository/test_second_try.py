"""A flake costs no run: what failed is run once more, alone, and has a date (tests/flakes.toml)."""

from __future__ import annotations

import importlib
import json
import sys
import tomllib
from datetime import date
from pathlib import Path
from types import ModuleType, SimpleNamespace

import nbformat
import pytest

from tests.turns import takes_turns

ROOT = Path(__file__).resolve().parent.parent.parent

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
def tool(monkeypatch):
    """A module of tools/."""

    def load(name: str) -> ModuleType:
        monkeypatch.syspath_prepend(ROOT / "tools")
        return importlib.import_module(name)

    return load


def stages(project, *names: str, **environment: str):
    return project.run(sys.executable, "tools/test.py", *names, **environment)


def part(output: str, title: str) -> str:
    """What stands below a title, up to the next."""
    return output.split(f"\n== {title}\n")[1].split("\n== ")[0]


FLAKY = """
import os, pathlib, pytest

HERE = pathlib.Path(__file__).parent

def number_of_this_try(name):
    with open(HERE / name, "a") as file:
        file.write("x")
    return len((HERE / name).read_text())

@pytest.mark.parametrize("which", ["a [b] / c", "d::e"])
def test_flaky(which):
    number = number_of_this_try(f"flaky{len(which)}")
    print(f"this is try {number}")
    assert number == 2, "the first try"

def test_ends_its_worker_once():
    if number_of_this_try("ends") == 1:
        os._exit(3)

def test_fails():
    assert number_of_this_try("fails") > OFTEN, "always"

def test_passes():
    assert number_of_this_try("passes") == 1
"""


@pytest.mark.slow
def test_what_passes_at_the_second_try_has_passed_and_is_told(project):
    project.write("test_flaky.py", FLAKY.replace("OFTEN", "0"))
    done = stages(project, "unit", "timing")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "5 passed, 0 failed, 0 skipped"
    assert "ok, 3 at the second try" in part(done.stdout, "summary")
    assert part(done.stdout, "failed") == ""
    told = part(done.stdout, "passed at the second try")
    name = "tests/test_flaky.py::test_flaky[d::e]"
    first, second = told.split(f"{name}: the second try\n")
    assert "AssertionError: the first try" in first and "this is try 1" in first.split(name)[1]
    assert second.split("\nunit")[0].strip().splitlines() == [
        "Captured stdout call",
        "this is try 2",
    ]
    entries = tomllib.loads("[[flake]]" + told.split("[[flake]]", 1)[1])["flake"]
    assert {one["test"].rpartition("::test_")[2] for one in entries} == {
        "flaky[a [b] / c]",
        "flaky[d::e]",
        "ends_its_worker_once",
    }
    assert [*entries[0]] == ["test", "date", "commit", "cause", "mended"]


@pytest.mark.slow
@takes_turns("tools/")
def test_what_fails_twice_has_failed(project):
    project.write("test_flaky.py", FLAKY.replace("OFTEN", "9"))
    done = stages(project, "unit")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "4 passed, 1 failed, 0 skipped"
    assert "test_fails\n           AssertionError: always" in part(done.stdout, "failed")
    assert (project.folder / "tests" / "fails").read_text() == "xx"  # twice, and no more


@pytest.mark.slow
@takes_turns("tools/")
def test_a_test_that_has_flaked_twice_gets_no_second_try(project):
    project.write("test_flaky.py", FLAKY.replace("OFTEN", "0"))
    entry = '[[flake]]\ntest = "tests/test_flaky.py::test_flaky[d::e]"\ndate = 2026-01-01\n'
    entry += 'commit = "abc"\ncause = "?"\nmended = ""\n'
    project.write("flakes.toml", entry * 2)
    done = stages(project, "unit")
    assert done.returncode == 1
    assert "no second try: tests/flakes.toml has several entries" in done.stdout
    assert done.stdout.splitlines()[-1] == "2 passed, 3 failed, 0 skipped"


CELL = """
import pathlib
place = pathlib.Path("../build/tries")
number = len(place.read_text()) if place.exists() else 0
_ = place.write_text("x" * (number + 1))
"""


@pytest.mark.slow
@takes_turns("tools/")
def test_a_notebook_is_tried_again_as_a_whole(project):
    notebook = nbformat.v4.new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    )
    for source, output in ((CELL, ""), ("print(min(number, 1))", "1\n"), ("print(2)", "2\n")):
        cell = nbformat.v4.new_code_cell(source, execution_count=1)
        cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=output)] * bool(output)
        notebook.cells.append(cell)
    (project.folder / "lessons").mkdir()
    nbformat.write(notebook, project.folder / "lessons" / "01-a.ipynb")
    done = stages(project, "notebooks", PYTEST_PLUGINS="xdist.plugin,pytest_timeout,nbval.plugin")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "3 passed, 0 failed, 0 skipped"
    assert 'test = "lessons/01-a.ipynb"' in part(done.stdout, "passed at the second try")


# --- what is tried, and what is taken in ------------------------------------------------------------------------


def outcome(tool, **tests: str):
    """Outcomes of tests of one file, by name; "running" and "not_run" too."""
    found = tool("outcomes").Outcomes()
    for name, result in tests.items():
        test = f"tests/a.py::{name}" if "cell" not in name else f"lessons/01.ipynb::{name}"
        if result == "running":
            found.running[test] = 1.0
        elif result == "not_run":
            found.not_run.append(test)
        else:
            line = {"test": test, "outcome": result, "seconds": 1.0, "why": result}
            found.finished[test] = line
    return found


def test_so_many_failures_are_no_accident_and_a_stage_that_broke_is_none(tool):
    wanted = tool("second_try").wanted
    few = {f"test_{number}": "failed" for number in range(10)}
    assert wanted(outcome(tool, **few, passes="passed"), []) == (
        [f"tests/a.py::{one}" for one in few],
        "",
    )
    targets, why = wanted(outcome(tool, **few, one_more="failed"), [])
    assert not targets and "11 failed" in why
    cells = {f"cell_{number}": "failed" for number in range(15)}
    assert wanted(outcome(tool, **cells), []) == (["lessons/01.ipynb"], "")
    for other in ("running", "not_run"):
        targets, why = wanted(outcome(tool, test_a="failed", test_b=other), [])
        assert not targets and why
    broken = tool("outcomes").Outcomes(
        finished={"tests/a.py": {"outcome": "failed", "seconds": 0.0, "why": "import"}}
    )
    assert wanted(broken, [])[0] == []
    assert wanted(outcome(tool, test_a="passed"), []) == ([], "")


def test_of_a_notebook_all_has_to_pass_and_what_was_cut_is_not_taken_in(tool):
    take_in = tool("second_try").take_in

    def left(first: dict[str, str], second: dict[str, str]) -> list[str]:
        found = outcome(tool, **first)
        take_in(found, outcome(tool, **second))
        return [test.rpartition("::")[2] for test in found.of("failed")]

    cells = {"cell_0": "passed", "cell_1": "failed"}
    assert left(cells, {"cell_0": "passed", "cell_1": "passed"}) == []
    assert left(cells, {"cell_0": "failed", "cell_1": "passed"}) == ["cell_1"]
    assert left(cells, {"cell_1": "passed", "cell_2": "running"}) == ["cell_1"]
    assert left(cells, {}) == ["cell_1"]
    tests = {"test_a": "failed", "test_b": "failed", "test_c": "failed"}
    assert left(tests, {"test_a": "passed", "test_b": "running", "test_c": "skipped"}) == [
        "test_b",
        "test_c",
    ]


def test_without_time_none_is_made(tool, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["test.py"])
    monkeypatch.syspath_prepend(ROOT / "tools")
    spec = importlib.util.spec_from_file_location("tools_test", ROOT / "tools" / "test.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "tools_test", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "run", lambda *_: pytest.fail("it was run"))
    result = module.Result(
        module.stages("fixed")[0], 1, 1.0, outcomes=outcome(tool, test_a="failed")
    )
    monkeypatch.setattr(module.time, "time", lambda: 1000.0)
    module.try_again([result], 1.0, 1000.0 + module.LEAST / 2, module.Stop)
    assert "no second try: there is no time left" in capsys.readouterr().out
    assert result.failed == 1


@pytest.mark.parametrize("second", ["passed", "failed"])
@pytest.mark.parametrize("where", ["bare_machine", "other_python"])
def test_the_other_machines_try_once_more_as_well(tool, monkeypatch, tmp_path, where, second):
    module, given = tool(where), []

    def run(command):
        """Of a run of pytest: its record, and the exit code."""
        given.append(command[2:])
        outcome = second if "--outputs" in command else "failed"
        line = {
            "test": "tests/a.py::b",
            "outcome": outcome,
            "seconds": 1.0,
            "why": "",
            "output": "",
        }
        Path(command[2]).parent.mkdir(parents=True, exist_ok=True)
        Path(command[2]).write_text(json.dumps(line) + "\n", encoding="utf-8")
        return int(outcome == "failed")

    if where == "bare_machine":
        monkeypatch.setattr(module, "run", lambda place, command, *_: run(command))
        place = SimpleNamespace(top=tmp_path)
        found, code = module.in_two_tries(place, "python", ["tests", "-n", "3"], {}, 2.0, 0.0)
        assert code == int(second == "failed")
    else:
        monkeypatch.setattr(module, "ROOT", tmp_path)
        monkeypatch.setattr(module, "end_all", lambda *_: None)

        def popen(command, **_):
            code = run(command)
            return SimpleNamespace(wait=lambda *_: code)

        monkeypatch.setattr(module.subprocess, "Popen", popen)
        found = module.run("python", ["tests", "-n", "3"], 2.0, 0.0)
    assert [*found.second] == ["tests/a.py::b"][: second == "passed"]
    assert [one[1:] for one in given] == [
        ["--timeout=600", "tests", "-n", "3"],
        ["--outputs", "--timeout=600", "tests/a.py::b", "-n", "1"],
    ]


# --- tests/flakes.toml ------------------------------------------------------------------------------------------


def test_no_flake_of_ours_is_overdue_and_each_has_what_an_entry_has(tool):
    flakes = tool("flakes")
    late = flakes.overdue(flakes.read(), date.today())
    assert not late, f"mend it, or find out that it is no flake: {late}"


def test_an_entry_is_read_back_and_overdue_after_fourteen_days_until_it_is_mended(tool, tmp_path):
    flakes = tool("flakes")
    name = 'tests/a.py::test_b[a "quoted" \\ one, ü]'
    place = tmp_path / "flakes.toml"
    place.write_text(flakes.entry(name, date(2026, 11, 1), "abc"), encoding="utf-8")
    [one] = flakes.read(place)
    assert (one.test, one.date, one.commit, one.mended) == (name, date(2026, 11, 1), "abc", "")
    assert flakes.overdue([one], date(2026, 11, 15)) == []
    assert flakes.overdue([one], date(2026, 11, 16)) == [one]
    mended = flakes.Flake(one.test, one.date, one.commit, "why", "def")
    assert flakes.overdue([mended], date(2027, 1, 1)) == []
    assert flakes.no_accident([one, mended]) == set()
    assert flakes.no_accident([one, one, mended]) == {name}
    place.write_text('[[flake]]\ntest = "a"\ndate = "2026-11-01"\n', encoding="utf-8")
    with pytest.raises(ValueError, match="entry 1: it has test, date; an entry has"):
        flakes.read(place)


def test_lint_looks_too():
    lint = (ROOT / "Makefile").read_text(encoding="utf-8").split("\nlint:")[1].split("\n\n")[0]
    assert "tools/flakes.py" in lint


def test_what_ran_before_keeps_its_second_tries(tool, tmp_path):
    """The bare machine's record, which tools/test.py reads."""
    found = outcome(tool, test_a="failed", test_b="passed")
    tool("second_try").take_in(found, outcome(tool, test_a="passed"))
    record = tmp_path / "record.jsonl"
    tool("bare_machine").write([found], 7.0, record)
    read = tool("outcomes").read(record, 0.0)
    assert [*read.second] == ["tests/a.py::test_a"] and not read.of("failed")
    assert json.loads(record.read_text().splitlines()[1])["first"]["outcome"] == "failed"
