"""Where a cell of lesson 26 cannot run, it says why in one sentence, and shows what the committed run shows."""

from __future__ import annotations

import json
import os
import re
import subprocess

import papermill
import pytest

from dtcourse.course import notebook as nbfile
from dtcourse.course import places
from dtcourse.course.recorded import VARIABLE, Recorded
from dtcourse.course.reproducible import COMPARED_OTHERWISE, REPLACEMENTS
from dtcourse.launch.cluster.throwaway import ThrowawaySlurm

LESSON = places.home() / "lessons" / "26-clusters.ipynb"


def text_of(cell) -> str:
    return "\n".join(
        text
        for output in cell["outputs"]
        for kind, text in nbfile.output_text(output)
        if kind in ("stream", "text/plain")
    )


LINES = re.compile(r"^(?:Run here|Not run: (.*)\n+^Recorded on 20\d\d-\d\d-\d\d): .*\n?", re.M)


def executed(tmp_path, **parameters):
    """{reason: ids of the cells that were not run for it}; every cell shows what the committed run shows."""
    out = tmp_path / "executed.ipynb"
    papermill.execute_notebook(LESSON, out, parameters, kernel_name="python3", progress_bar=False)
    here = {cell.get("id"): cell for cell in nbfile.read(out)["cells"]}
    said: dict[str, set[str]] = {}
    for cell in nbfile.read(LESSON)["cells"]:
        if cell["cell_type"] != "code" or "nbval-ignore-output" in nbfile.tags(cell):
            continue
        shown = text_of(here[cell["id"]])
        for reason in filter(None, LINES.findall(shown)):
            said.setdefault(reason, set()).add(cell["id"])
        assert LINES.sub("", shown).split() == LINES.sub("", text_of(cell)).split(), cell["id"]
    return said


@pytest.mark.notebooks
@pytest.mark.slow
def test_a_lesson_without_slurm_says_so_and_shows_what_slurm_would(tmp_path):
    [(reason, cells)] = executed(tmp_path, SLURM=False).items()
    assert reason == "SLURM is False in the parameters cell." and len(cells) >= 8


@pytest.mark.notebooks
@pytest.mark.slow
@pytest.mark.slurm
def test_a_lesson_whose_slurm_does_not_come_up_says_why_and_shows_what_slurm_would(
    tmp_path, monkeypatch
):
    broken = tmp_path / "bin" / "slurmctld"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho 'fatal: Unable to bind listen port: in use' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{broken.parent}:{os.environ['PATH']}")
    [(reason, cells)] = executed(tmp_path).items()
    assert reason == (
        "Slurm did not come up on this machine: slurmctld ended with exit code 1, and said: "
        "fatal: Unable to bind listen port: in use."
    )
    assert len(cells) >= 8


@pytest.mark.notebooks
@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.stands_on(
    "lessons/26-clusters.ipynb", "dtcourse/launch/cluster/", "dtcourse/course/recorded.py"
)
def test_a_lesson_runs_on_the_reader_s_own_cluster_but_for_what_needs_idle_nodes(
    tmp_path, monkeypatch
):
    (tmp_path / "cluster.toml").write_text(
        f'folder = "{tmp_path}/jobs"\npartition = "all"\nminutes = 5\n'
    )
    monkeypatch.setenv("DTCOURSE_CLUSTER", str(tmp_path / "cluster.toml"))
    with ThrowawaySlurm(nodes=2, cpus=4):
        [(reason, cells)] = executed(tmp_path, CLUSTER="slurm").items()
        number = subprocess.run(
            ["sbatch", "--parsable", "--wrap=true"], capture_output=True, text=True, check=True
        ).stdout
    assert reason.startswith("it needs two idle nodes of four CPUs each")
    assert cells == {"array-run", "gang-run", "resources-run", "elastic"}
    assert int(number) >= 12, "the cells' jobs were this cluster's"
    assert list((tmp_path / "jobs").glob("lesson-26-*")), "its files lie where the nodes see them"


def test_what_was_found_is_written_down_and_read_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(places, "home", lambda: tmp_path)
    (tmp_path / "lessons").mkdir()
    live, away = Recorded("99", None), Recorded("99", "there is no Slurm here")

    def squares(n):
        """The first squares."""
        return {"squares": tuple(i * i for i in range(n))}

    assert live("squares", squares, 3) == {"squares": [0, 1, 4]}, "as JSON gives it back"
    assert not live.file.exists(), "only where it is asked for"
    monkeypatch.setenv(VARIABLE, "1")
    live("squares", squares, 3)
    live("others", squares, 1)
    assert set(json.loads(live.file.read_text())) == {"squares", "others"}
    assert capsys.readouterr().out == "Run here: The first squares.\n", "once for one function"
    assert away("squares", squares, 5) == {"squares": [0, 1, 4]}
    out = capsys.readouterr().out
    assert "Not run: there is no Slurm here.\n" in out
    assert re.search(r"Recorded on 20\d\d-\d\d-\d\d: The first squares\.\n", out)
    with pytest.raises(KeyError):
        away("never", squares, 1)


def as_nbval_compares(text):
    for _, pattern, stand_in in REPLACEMENTS + COMPARED_OTHERWISE:
        text = re.sub(pattern, stand_in, text)
    return text


def test_nbval_compares_what_was_found_and_not_where(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(places, "home", lambda: tmp_path)
    monkeypatch.setenv(VARIABLE, "1")
    (tmp_path / "lessons").mkdir()

    def asked():
        """squeue --me"""
        return "nothing"

    compared = set()
    for why in (None, "there is no Slurm here: sbatch not found", "Slurm ended, and said: no.."):
        print(Recorded("99", why)("asked", asked))
        compared.add(as_nbval_compares(capsys.readouterr().out))
    assert compared == {"Run, here or elsewhere: squeue --me\nnothing\n"}


@pytest.mark.parametrize("path", sorted(places.notebooks("lessons").values()))
def test_what_is_committed_was_run(path):
    shown = [text_of(cell) for cell in nbfile.code_cells(nbfile.read(path))]
    not_run = [text for text in shown if "Not run: " in text]
    if (
        places.number_of(path.name) == "29"
    ):  # other frameworks, whose environments nobody has unasked
        not_run = [text for text in not_run if "has no environment here" not in text]
    assert not not_run
