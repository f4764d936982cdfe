"""One probe, one reason for each thing that a machine may lack, and no test that skips in a way of its own."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

import pytest

from dtcourse.course.judging import bubblewrap
from dtcourse.launch.cluster import throwaway
from tests import optional_programs
from tests.turns import taking_turns

ROOT = Path(__file__).resolve().parents[2]
# The commands that each probe looks for, and what they say.
COMMANDS = {
    "slurm": dict.fromkeys(throwaway.NEEDED, ""),
    "bubblewrap": {"bwrap": ""},
    "browser": {"chromium": ""},
    "mpirun": {"mpirun": "mpirun (Open MPI) 4.1.4"},
    "nvidia-smi": {"nvidia-smi": ""},
    "git": {"git": ""},
    "namespaces": {"ip": ""},
}
PROGRAMS = [need for need in optional_programs.NEEDS.values() if need.brings]
OF_A_PROGRAM = re.compile(
    r"bubblewrap|bwrap|slurm|sbatch|srun|munge|mpirun|open.?mpi|chromium|playwright|nvidia|\bgit\b|triton",
    re.I,
)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The only folder on PATH: a function that puts a command there."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(throwaway, "_path", lambda: str(tmp_path))  # it looks in /usr/sbin, too
    bubblewrap.why_not.cache_clear()

    def put(name: str, says: str = "", code: int = 0) -> None:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\necho '{says}'\nexit {code}\n")
        path.chmod(0o755)

    yield put
    bubblewrap.why_not.cache_clear()


def test_each_program_is_tried():
    assert {need.name for need in PROGRAMS} == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_probe_looks_for_its_program(name, place):
    need = optional_programs.NEEDS[name]
    others = {
        command: says
        for other, it in COMMANDS.items()
        if other != name
        for command, says in it.items()
    }
    for command, says in others.items():
        place(command, says)
    assert not need.is_here(), "the others are not it"
    bubblewrap.why_not.cache_clear()
    for command, says in COMMANDS[name].items():
        assert not need.is_here(), "not all of it is here yet"
        bubblewrap.why_not.cache_clear()
        place(command, says)
    assert need.is_here()


def test_what_does_not_work_or_is_another_s_is_not_here(place):
    place("bwrap", code=1)
    place("mpirun", says="HYDRA build details:")
    for name in ("bubblewrap", "mpirun"):
        assert not optional_programs.NEEDS[name].is_here()


def test_a_machine_without_them_lacks_what_the_probes_look_for_and_nothing_else():
    for command in (command for commands in COMMANDS.values() for command in commands):
        assert optional_programs.hidden(command), command
    for command in ("python3", "sh", "make", "ps", "setpriv", "ssh", "printf", "msgmerge"):
        assert not optional_programs.hidden(command), command


def test_each_reason_is_its_own():
    reasons = [need.reason for need in optional_programs.NEEDS.values()]
    assert len(set(reasons)) == len(reasons)
    assert optional_programs.unknown(reasons) == []
    assert optional_programs.unknown([reasons[0], "not today", "needs patience"]) == [
        "not today",
        "needs patience",
    ]


def skips(tree: ast.AST) -> list[str]:
    """What a file's own skips say and ask."""
    return [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("skip", "skipif", "importorskip")
    ]


def test_no_test_skips_for_a_program_in_a_way_of_its_own():
    own = {
        path.relative_to(ROOT).as_posix(): text
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for text in skips(ast.parse(path.read_text(encoding="utf-8")))
        if OF_A_PROGRAM.search(text)
    }
    assert own == {}


@pytest.mark.parametrize(
    "text",
    [
        'pytest.mark.skipif(shutil.which("git") is None, reason="no")',
        'pytest.skip("needs Slurm")',
        "pytest.mark.skipif(bool(bubblewrap.why_not()), reason='')",
        'pytest.importorskip("triton")',
    ],
)
def test_the_rule_notices(text):
    assert OF_A_PROGRAM.search(" ".join(skips(ast.parse(text))))


# --- the machine without them (tools/bare_machine.py) ---------------------------------------------------------------


@pytest.fixture
def bare(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import bare_machine

    return bare_machine


def outcomes(*lines):
    import outcomes

    found = outcomes.Outcomes()
    for number, (outcome, why) in enumerate(lines):
        found.finished[f"tests/test_a.py::test_{number}"] = {
            "test": f"tests/test_a.py::test_{number}", "outcome": outcome, "seconds": 0.0, "why": why,
        }  # fmt: skip
    return found


def test_a_skip_for_another_reason_fails_the_machine(bare):
    git = optional_programs.NEEDS["git"].reason
    fine = bare.judged(outcomes(("passed", ""), ("skipped", git)))
    assert bare.trouble(fine, 0) == []
    found = bare.judged(outcomes(("passed", ""), ("skipped", git), ("skipped", "needs patience")))
    [line] = bare.trouble(found, 0)
    assert "test_2" in line and "needs patience" in line


def test_a_machine_on_which_nothing_or_not_all_ran_has_failed(bare):
    assert bare.trouble(outcomes(), 5) == ["nothing ran"]
    assert bare.trouble(outcomes(("passed", "")), 3) == ["pytest ended with 3"]
    assert "why" in str(bare.trouble(outcomes(("failed", "why")), 1))
    cut = outcomes(("passed", ""))
    cut.not_run, cut.running = ["tests/test_b.py::test_b"], {"tests/test_a.py::test_x": 1.0}
    assert len(bare.trouble(cut, 124)) == 2


def test_its_record_is_read_by_the_suite_s_summary(bare, tmp_path, monkeypatch):
    import outcomes as tool

    monkeypatch.setattr(bare, "RECORD", tmp_path / "bare.jsonl")
    found = bare.judged(outcomes(("passed", ""), ("skipped", "needs patience")))
    found.running = {"tests/test_a.py::test_x": 1.0}
    found.not_run = ["tests/test_b.py::test_b"]
    bare.write([found, outcomes(("passed", ""))], 12.5, bare.RECORD)
    read = tool.read(tmp_path / "bare.jsonl", 0.0)
    assert (len(read.of("failed")), list(read.running), read.not_run, read.seconds) == (
        1, ["tests/test_a.py::test_x"], ["tests/test_b.py::test_b"], 12.5,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("share", ["drawn", *taking_turns("fixed", about="tools/")])
def test_of_what_has_passed_there_every_second_test_waits_in_ci(project, share):
    source = "import pytest\n\n@pytest.mark.parametrize('number', range(20))\ndef test_fine(number):\n    pass\n"
    project.write("test_fine.py", source)
    reports = project.folder / "build" / "reports"
    reports.mkdir(parents=True)
    tests = (f"tests/test_fine.py::test_fine[{number}]" for number in range(20))
    lines = [
        json.dumps({"test": one, "outcome": "passed", "seconds": 0, "why": ""}) for one in tests
    ]
    (reports / "bare.jsonl").write_text("\n".join([*lines, json.dumps({"took": 7.0})]) + "\n")
    settings = {"DTCOURSE_TEST_BARE": "0", "DTCOURSE_TEST_SHARE": share, "DTCOURSE_TEST_DRAW": "0"}
    done = project.run(sys.executable, "tools/test.py", "unit", **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    waiting = re.search(r"^ +(\d+)  unit +not its turn: it has just passed", done.stdout, re.M)
    passed = int(re.search(r"^unit +(\d+) passed", done.stdout, re.M)[1])
    assert (waiting is None) == (share == "fixed")
    assert passed + int(waiting[1] if waiting else 0) == 20 and (
        share == "fixed" or 4 < passed < 16
    )


@pytest.mark.slow
@pytest.mark.parametrize("code", [2, *taking_turns(0, 1, about="tools/")])  # make's is 2
def test_the_suite_fails_where_the_machine_without_them_has_failed(project, code):
    project.write("test_fine.py", "def test_fine():\n    pass\n")
    reports = project.folder / "build" / "reports"
    reports.mkdir(parents=True)
    test = "tests/test_bare.py::test_bare"
    outcome = "failed" if code else "passed"
    line = {"test": test, "outcome": outcome, "seconds": 0.0, "why": "there is no git"}
    (reports / "bare.jsonl").write_text(json.dumps(line) + "\n" + json.dumps({"took": 7.0}) + "\n")
    done = project.run(sys.executable, "tools/test.py", "unit", DTCOURSE_TEST_BARE=str(code))
    assert done.returncode == min(code, 1), done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("1 passed, 1 failed" if code else "2 passed, 0 failed")
    assert "pytest ended with" not in done.stdout
    assert ("there is no git" in done.stdout) == bool(code)
    assert re.search(r"^bare +\d passed", done.stdout, re.M)


def test_what_each_reason_skips_is_named(bare):
    import outcomes as tool

    found = tool.Outcomes()
    for test in ("tests/a.py::one", "tests/a.py::two", "tests/b.py::three"):
        found.finished[test] = {"outcome": "skipped", "why": "needs git"}
    found.finished["tests/c.py::four"] = {"outcome": "skipped", "why": "needs Slurm"}
    assert found.skipped_by("needs git") == "tests/a.py (2), tests/b.py::three"


def test_what_looks_at_a_program_is_tried_without_it(bare):
    """Of a file of which only some tests are tried there, these are the ones that look; and all named is there."""
    for place in bare.TRIED:
        file, _, test = place.partition("[")[0].partition("::")
        assert (ROOT / file).exists()
        assert not test or f"def {test}(" in (ROOT / file).read_text(encoding="utf-8")
    names = "|".join(need.name for need in PROGRAMS)
    needs = re.compile(
        rf"""(needs|require)\([^)]*"({names})"|mark\.(slurm|browser)|bubblewrap(\.| import )why_not"""
    )
    found = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if needs.search(path.read_text(encoding="utf-8"))
    }
    assert "tests/course/test_judging.py" in found and "tests/launch/cluster/test_slurm.py" in found
    tried = tuple(f"{place}/" for place in bare.TRIED if "." not in place)
    files = {place.partition("::")[0] for place in bare.TRIED}
    assert [one for one in sorted(found) if not one.startswith(tried) and one not in files] == []
