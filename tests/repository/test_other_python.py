"""tools/other_python.py: whose turn it is, what it says where it cannot try one, and that its failures are failures."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests import rotation

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tool(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "tools")
    import other_python

    monkeypatch.setattr(other_python, "RECORD", tmp_path / "python.jsonl")
    monkeypatch.setattr("sys.argv", ["other_python.py"])
    monkeypatch.setenv("DTCOURSE_TEST_SLOWNESS", "1")
    monkeypatch.delenv("CI", raising=False)
    return other_python


def test_each_python_that_is_here_has_its_turn(tool):
    drawn = {tool.chosen(["3.12", "3.13"], f"{number:08x}") for number in range(2)}
    assert drawn == {"3.12", "3.13"}
    assert tool.chosen(["3.13"], rotation.draw()) == "3.13"
    assert tool.chosen([], rotation.draw()) is None


def test_ci_tries_each_in_one_run_of_four(tool, monkeypatch, capsys):
    turns = [
        (tool.chosen(["3.12", "3.13"], f"{number:08x}"), tool.has_turn(f"{number:08x}"))
        for number in range(4)
    ]
    assert sorted(turns) == [("3.12", False), ("3.12", True), ("3.13", False), ("3.13", True)]
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(tool, "find", lambda version: "a Python")
    monkeypatch.setattr(tool.rotation, "draw", lambda: "00000003")
    assert tool.main() == 0
    assert "not tried: 3.13 has its turn in another run" in capsys.readouterr().out


def test_ci_tries_none_on_a_slow_machine(tool, monkeypatch, capsys):
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("DTCOURSE_TEST_SLOWNESS", "2.4")
    monkeypatch.setattr(tool, "find", lambda version: "a Python")
    monkeypatch.setattr(tool.rotation, "draw", lambda: "00000001")
    monkeypatch.setattr(tool, "made", lambda version, python: pytest.fail("it installs"))
    assert tool.main() == 0
    assert "it takes 2.4 times as long as usual" in capsys.readouterr().out


def test_what_it_tries_is_there(tool):
    for place in tool.TRIED:
        assert (ROOT / place).exists(), place
    assert (
        len([path for path in tool.runs()[1] if path.endswith(".ipynb")]) == len(tool.NUMBERS) == 5
    )


def test_a_python_that_does_not_start_is_none(tool, tmp_path, monkeypatch):
    program = tmp_path / "python3.99"
    program.write_text("#!/bin/sh\necho 'pyenv: python3.99: command not found' >&2\nexit 127\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tool.find("3.99") is None
    program.write_text("#!/bin/sh\necho 3.99\n")
    assert tool.find("3.99") == str(program)


def test_without_another_python_nothing_has_failed(tool, monkeypatch, capsys):
    monkeypatch.setattr(tool, "find", lambda version: None)
    assert tool.main() == 0
    assert "not tried: none of 3.12, 3.13 is here" in capsys.readouterr().out
    assert not tool.RECORD.exists()


@pytest.mark.parametrize(
    ("free", "program", "why"),
    [
        (1e9, "exit 1", "9 GB, and 1 are free"),
        (1e12, "exit 1", "could not be made"),
        (1e12, "sleep 60", "not ready"),
    ],
)
def test_without_its_environment_nothing_has_failed(
    tool, monkeypatch, capsys, tmp_path, free, program, why
):
    python = tmp_path / "python3.12"
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    monkeypatch.setattr(tool, "find", lambda version: str(python))
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "INSTALLING", 2)
    monkeypatch.setattr(tool.shutil, "disk_usage", lambda _: type("", (), {"free": free}))
    assert tool.main() == 0
    said = capsys.readouterr().out
    assert "other Python: not tried: 3.1" in said and why in said


@pytest.mark.parametrize("script", ["", "raise SystemExit(3)", "import time; time.sleep(60)"])
def test_a_run_that_tells_of_no_test_has_failed(tool, monkeypatch, tmp_path, capsys, script):
    (tmp_path / "build" / "reports").mkdir(parents=True)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "recorded_pytest.py").write_text(script)
    python = Path(tool.sys.executable)
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "find", lambda version: str(python))
    monkeypatch.setattr(tool, "made", lambda version, path: (python, ""))
    monkeypatch.setattr(tool, "USUAL", 0.02)
    monkeypatch.setattr(tool, "runs", lambda: [["tests"]])
    assert tool.main() == 1
    assert "0 passed, 1 failed" in capsys.readouterr().out


def test_what_the_package_says_of_pythons_is_what_is_tried(tool):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    kinds = "Programming Language :: Python :: 3."
    said = {one.rpartition(" ")[2] for one in project["classifiers"] if one.startswith(kinds)}
    written = {path.name.split("-")[1] for path in (ROOT / "tests/checkpoint/written").iterdir()}
    assert said == {"3.11", *tool.VERSIONS} == {one.rpartition(".")[0] for one in written}
    assert f"Python 3.11 to {max(said)}" in (ROOT / "README.md").read_text()
