"""`dtcourse doctor --prove` does each thing once, and says what is wrong where something comes out otherwise."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import nbformat
import pytest
from typer.testing import CliRunner

from dtcourse.cli import app
from dtcourse.course import doctor, places
from dtcourse.course.doctor import Finding, proof


def found(part) -> tuple[str, str]:
    """State and words of a part's one finding."""
    [finding] = part()
    return finding.state, finding.found


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """A course of one lesson, and of one notebook of exercises with its solution."""
    exercises = {
        kind: places.notebooks(kind)[proof.EXERCISE] for kind in ("exercises", "solutions")
    }
    for kind, path in exercises.items():
        (tmp_path / kind).mkdir()
        shutil.copy(path, tmp_path / kind)
    write_lesson(tmp_path, "import os", "os.getpid() + 1")
    monkeypatch.setenv("DTCOURSE_HOME", str(tmp_path))
    return tmp_path


def write_lesson(home: Path, *cells: str) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    (home / "lessons").mkdir(exist_ok=True)
    nbformat.write(notebook, home / "lessons" / f"{proof.LESSON}-a-lesson.ipynb")


def test_a_collective_is_held_against_gloo(monkeypatch):
    assert found(proof.collective)[0] == "ok"
    monkeypatch.setattr(proof, "_sums_that_differ", lambda: 3)
    assert found(proof.collective) == ("problem", "6 of 2000 sums differ from gloo's")


def test_a_ring_that_adds_wrongly_is_found(monkeypatch):
    def with_a_wrong_ring() -> int:
        from dtcourse.collectives import ring

        right = ring.all_reduce
        ring.all_reduce = lambda tensor: (right(tensor), tensor[7].add_(1))
        return proof._sums_that_differ()

    from dtcourse.launch import launch

    assert list(launch(with_a_wrong_ring, 2)) == [1, 1]


def test_a_checkpoint_is_read_by_another_process_which_goes_on(monkeypatch):
    assert found(proof.checkpoint)[0] == "ok"

    def forgets(folder: str) -> float:
        from dtcourse import checkpoint

        model, _, step = proof._training(seed=1)
        checkpoint.load(folder, model)  # without the optimizer's state
        return step()

    monkeypatch.setattr(proof, "_read", forgets)
    state, words = found(proof.checkpoint)
    assert state == "problem" and words.startswith("after it the loss is ")


@pytest.mark.slow
def test_a_lesson_is_executed(home):
    assert found(proof.lesson)[0] == "ok"
    write_lesson(home, "print('begins')", "1 / 0")
    state, words = found(proof.lesson)
    assert state == "problem" and words.startswith("12-a-lesson.ipynb") and "ZeroDivision" in words
    shutil.rmtree(home / "lessons")
    assert found(proof.lesson) == (
        "problem", "lessons/ has no notebook 12: the course's repository is not whole"
    )  # fmt: skip


@pytest.mark.slow
def test_an_exercise_is_judged(home):
    state, words = found(proof.exercise)
    assert state == "ok" and "its solution passes" in words
    [solution] = (home / "solutions").iterdir()
    [begun] = (home / "exercises").iterdir()
    right = solution.read_text(encoding="utf-8")
    shutil.copy(begun, solution)
    assert "does not pass" in found(proof.exercise)[1]
    solution.write_text(right, encoding="utf-8")
    shutil.copy(solution, begun)
    state, words = found(proof.exercise)
    assert state == "problem" and "counts as attempted" in words


def test_the_command_proves_after_it_has_looked_and_fails_where_a_proof_does(monkeypatch):
    def proved(name: str, state: str = "ok"):
        monkeypatch.setattr(doctor.proof, name, lambda: iter([Finding(name, state, "told")]))

    for name in ("collective", "checkpoint", "lesson", "exercise"):
        proved(name)
    monkeypatch.setattr(
        doctor.training, "two_ranks", lambda: iter([Finding("two ranks", "ok", "up")])
    )
    done = CliRunner().invoke(app, ["doctor", "--prove", "--json"])
    assert done.exit_code == 0, done.output
    names = [one["name"] for one in json.loads(done.output)]
    assert names[-5:] == ["two ranks", "collective", "checkpoint", "lesson", "exercise"]
    proved("checkpoint", "problem")
    done = CliRunner().invoke(app, ["doctor", "--prove"])
    assert done.exit_code == 1 and "1 to repair" in done.output and "checkpoint" in done.output
    without = [one.name for one in doctor.examine(False)]
    assert "collective" not in without


@pytest.mark.parametrize("other", [["--quick"], ["--cluster", "slurm"]])
def test_what_does_not_go_with_it_is_said(other):
    done = CliRunner().invoke(app, ["doctor", "--prove", *other])
    assert done.exit_code == 2 and "leave out --quick and --cluster" in done.output
