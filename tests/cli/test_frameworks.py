"""dtcourse framework list, run, compare: on a small folder of frameworks of its own, and what each refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dtcourse.cli import app
from dtcourse.course.frameworks import environment, known, records

CATALOGUE = """\
[toy]
title = "Toy"
script = "toy.py"
command = "python toy.py"
packages = []

[toy-apart]
title = "Toy apart"
script = "toy.py"
command = "python toy.py"
pins = "nothing"
packages = ["pip"]
megabytes = 20
minutes = 1

[toy-lost]
title = "Toy lost"
script = "toy.py"
command = "python toy.py"
pins = "lost"
packages = []
megabytes = 1_500
minutes = 2

[toy-mpi]
title = "Toy MPI"
script = "toy.py"
command = "no-such-mpirun python toy.py"
needs = "no-such-mpirun"
packages = []
"""
TOY = """\
import json, os, sys
print("toy of", sys.prefix)
if os.environ.get("TOY_FAILS"):
    sys.exit("not equal: step 3")
result = {"losses": [2.5, 1.5], "largest_difference": 1e-7, "step_seconds": 0.002, "step_bytes": 1234.0}
with open(os.environ["DTCOURSE_FRAMEWORK_RESULT"], "w") as file:
    json.dump(result, file)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A course with three toy frameworks, and a cache for their environments."""
    made = tmp_path / "course" / "frameworks"
    (made / "pins").mkdir(parents=True)
    (made / "catalogue.toml").write_text(CATALOGUE)
    for name in ("toy.py", "job.py"):
        (made / name).write_text(TOY)
    (made / "pins" / "nothing.txt").write_text("# nothing\n")
    (made / "pins" / "lost.txt").write_text("no-such-package-of-dtcourse==1.0\n")
    monkeypatch.setenv("DTCOURSE_HOME", str(made.parent))
    monkeypatch.setenv("DTCOURSE_FRAMEWORKS", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("DTCOURSE_RECORD", raising=False)
    return made


def command(*arguments):
    result = CliRunner().invoke(app, ["framework", *arguments])
    return result.exit_code, " ".join(result.output.split())


def test_a_framework_without_pins_runs_in_this_environment_and_its_record_is_kept(folder):
    code, said = command("run", "toy")
    assert code == 0, said
    assert "2.500000 to 1.500000" in said and "1,234" in said
    kept = json.loads((folder.parent / "build" / "frameworks" / "toy.json").read_text())
    assert kept["hashes"] == records.hashes(known()["toy"])
    assert kept["lines"] == 7
    code, said = command("compare", "toy")
    assert code == 0 and "1.0e-07" in said
    (folder / "toy.py").write_text(TOY + "\n")
    assert "the script changed after this record" in command("compare", "toy")[1]
    records.write(kept | {"date": "2026-01-01"}, records.committed(known()["toy"]))
    assert "2026-01-01" in command("compare", "toy")[1]  # which is as old, and has been reviewed
    (folder / "toy.py").write_text(TOY)
    assert kept["date"] in command("compare", "toy")[1]


def test_where_asked_the_record_is_the_repositorys(folder, monkeypatch):
    monkeypatch.setenv("DTCOURSE_RECORD", "1")
    assert command("run", "toy")[0] == 0
    assert (folder / "records" / "toy.json").exists()
    assert "20" in command("list")[1]


@pytest.mark.slow
@pytest.mark.needs("python3.11")
def test_an_environment_is_made_once_and_anew_where_it_was_interrupted_or_its_pins_change(folder):
    toy = known()["toy-apart"]
    assert not environment.is_ready(toy)
    assert "to make: 20 MB and about 1 minute" in command("list")[1]
    place = environment.place(toy)
    (place / "junk").mkdir(parents=True)
    (place / "dtcourse-installing").touch()  # as an interrupted one is left
    code, said = command("run", "toy-apart", "--yes")
    assert code == 0, said
    assert "20 MB and about 1 minute" in said and "The course's own stays as it is" in said
    assert environment.is_ready(toy) and not (place / "junk").exists()
    assert not (place / "dtcourse-installing").exists()
    assert Path(environment.python_of(toy)).is_relative_to(place)
    assert environment.python_of(known()["toy"]) == Path(sys.executable)
    code, said = command("run", "toy-apart")  # and asks nothing
    assert code == 0 and "20 MB" not in said
    (folder / "pins" / "nothing.txt").write_text("# nothing else\n")
    assert not environment.is_ready(toy)


@pytest.mark.slow
@pytest.mark.needs("python3.11")
def test_what_does_not_install_is_said_with_its_record(folder):
    toy = known()["toy-lost"]
    code, said = command("run", "toy-lost", "--yes")
    assert code == 1
    assert "does not install here: the packages of lost.txt failed" in said
    assert "no-such-package-of-dtcourse" in said and "no record of it either" in said
    assert not environment.is_ready(toy)
    found = {
        "losses": [2.5, 1.5],
        "largest_difference": 1e-7,
        "step_seconds": None,
        "step_bytes": None,
    }
    about = {"lines": 3, "seconds": 1.0, "versions": {}, "machine": "there", "date": "2026-01-01"}
    record = {**found, **about, "hashes": records.hashes(toy)}
    records.write(record, records.committed(toy))
    code, said = command("run", "toy-lost", "--yes")
    assert code == 1 and "What it did on 2026-01-01 on there" in said and "not counted" in said


def test_a_script_that_fails_is_said_in_its_own_words_and_keeps_no_record(folder, monkeypatch):
    monkeypatch.setenv("TOY_FAILS", "1")
    code, said = command("run", "toy")
    assert code == 1
    assert "not equal: step 3" in said and "did not do the job here: exit code 1" in said
    assert not (folder.parent / "build").exists()


def test_a_script_that_hangs_is_ended(folder):
    (folder / "toy.py").write_text("import time\ntime.sleep(1000)\n")
    code, said = command("run", "toy", "--timeout", "1")
    assert code == 1 and "not done after 1 second" in said


def test_one_that_ends_well_without_a_result_has_not_done_the_job(folder):
    (folder / "toy.py").write_text("print('nothing')\n")
    code, said = command("run", "toy")
    assert code == 1 and "wrote no result" in said


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["run", "toys"], 2, "there is no framework 'toys'; did you mean toy"),
        (["run", "pigeon"], 2, "`dtcourse framework list` has all"),
        (["compare", "pigeon"], 2, "there is no framework 'pigeon'"),
        (["compare"], 1, "No record of toy"),
        (["run", "toy-mpi"], 2, "needs the program no-such-mpirun"),
        (["run", "toy", "--timeout", "0"], 2, "timeout"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(folder, arguments, code, says):
    got, said = command(*arguments)
    assert (got, says in said) == (code, True), said


@pytest.mark.needs("python3.11")
def test_an_environment_is_not_made_unasked(folder):
    code, said = command("run", "toy-lost")
    assert code == 2 and "1,500 MB and about 2 minutes" in said and "give --yes" in said
    assert not environment.place(known()["toy-lost"]).exists()


def test_what_is_said_to_be_made_has_cudas_libraries_where_this_torch_has(
    folder, tmp_path, monkeypatch
):
    (tmp_path / "nvidia").mkdir()
    (tmp_path / "nvidia" / "libcublas.so").write_bytes(bytes(3_000_000))
    monkeypatch.setattr(environment.sysconfig, "get_paths", lambda: {"purelib": str(tmp_path)})
    catalogue = CATALOGUE.replace('packages = ["pip"]', 'packages = ["torch"]')
    (folder / "catalogue.toml").write_text(catalogue)
    code, said = command("list")
    assert code == 0 and "23 MB and about 1 minute" in said
    assert "1,500 MB and about 2 minutes" in said  # which has no torch


def test_without_python_3_11_the_command_says_so_before_any_question(folder, monkeypatch):
    monkeypatch.setattr(environment, "_version", lambda python: "3.13")
    code, said = command("run", "toy-lost", "--yes")
    assert code == 2 and "hold for Python 3.11, which is not on PATH" in said


def test_a_file_that_is_no_record_is_named(folder):
    file = records.committed(known()["toy"])
    file.parent.mkdir()
    file.write_text("[]")
    code, said = command("compare", "toy")
    assert code == 2 and "toy.json is no record" in said
