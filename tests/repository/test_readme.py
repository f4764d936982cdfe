"""Every command that the README shows is run somewhere: here, by another test, or by CI itself."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
README = (ROOT / "README.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()

# Command -> the file that runs it, and words that it must contain for that to be true.
RUN_ELSEWHERE = {
    "make lab": ("tests/repository/test_package.py", ['"make", "lab"']),
    # What CI runs is this and more, by the same program.
    "make test": ("tests/repository/test_suite.py", ["tools/test.py", '"fixed"']),
    "make test-ci": (".ci/run", ["make test-ci"]),
    "make test-bare": (".ci/run", ["make test-bare"]),
    "make test-python": (".ci/run", ["make test-python"]),
    'make lab PIP_ARGS="--index-url <address from the selector>"': (
        "tests/repository/test_setup.py",
        ["PIP_ARGS=--find-links"],
    ),
    "make lab PYTHON=python3.12": ("tests/repository/test_setup.py", ["PYTHON=mine", "PYTHON="]),
    # conda is on no machine of ours: a test reads each of its lines instead.
    "conda env create -f environment.yml": (
        "tests/repository/test_lock.py",
        ["test_every_conda_line_parses", "test_conda_installs_from_the_lock"],
    ),
    "conda activate dtcourse": ("environment.yml", ["name: dtcourse"]),
    # `make lint` is these three, and each is a test of its own.
    "make lint": ("tests/repository/test_rules.py", ['"check"', '"format", "--check"']),
    "make test-all": ("tests/repository/test_rotation.py", ['"all"']),
    "dtcourse doctor --prove": (
        "tests/course/test_doctor_proof.py",
        [f"found(proof.{part})" for part in ("collective", "checkpoint", "lesson", "exercise")],
    ),
}

# Run right here.
RUN_HERE = {
    "make help": "make lab",
    "dtcourse doctor": "torch",
    "dtcourse list": "01",
    "dtcourse topics": "amdahl",
}

# The course's own commands, which have tests of their own: where, and what shows that they run.
RUN_IN_CLI_TESTS = {
    "dtcourse lab": "lab",
    "dtcourse lab 02": "lab",
    "dtcourse lab --instructor": "lab",
    "dtcourse start": "start",
    "dtcourse start 02": "start",
    "dtcourse check": "check",
    "dtcourse check 02": "check",
    "dtcourse run 01 -p WORLD_SIZE 3": "run",
    "dtcourse framework list": "framework",
    "dtcourse framework run NAME": "framework",
    "dtcourse framework compare": "framework",
    "dtcourse exercises": "exercises",
    "dtcourse grade submissions/": "grade",
}

# Checked by a dry run, since the real thing takes minutes: each command of the recipe must exist.
DRY = {"make notebooks": "dtcourse.course.notebooks", "make bench": "benchmarks"}

ACTIVATE = "source .venv/bin/activate"


def commands() -> list[str]:
    """Each line of the README's shell blocks, and its inline commands, without comments."""
    blocks = re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    lines = [re.sub(r"\s+#.*", "", line).strip() for block in blocks for line in block.splitlines()]
    prose = re.sub(r"^```.*?^```", "", README, flags=re.MULTILINE | re.DOTALL)
    lines += re.findall(r"`((?:make|dtcourse) [^`]+)`", prose)
    return list(dict.fromkeys(line for line in lines if line))


def test_the_readme_shows_the_two_commands_first():
    assert commands()[:2] == ["make lab", "make test"]


@pytest.mark.parametrize("command", commands())
def test_every_command_of_the_readme_is_run_somewhere(command):
    known = {*RUN_ELSEWHERE, *RUN_HERE, *RUN_IN_CLI_TESTS, *DRY, ACTIVATE}
    assert command in known, f"`{command}` is in the README, and nothing runs it"


@pytest.mark.parametrize("command", sorted({*RUN_ELSEWHERE, *RUN_HERE, *RUN_IN_CLI_TESTS, *DRY}))
def test_no_command_here_has_left_the_readme(command):
    assert command in commands()


@pytest.mark.parametrize("command", RUN_ELSEWHERE)
def test_the_place_that_runs_it_still_does(command):
    place, words = RUN_ELSEWHERE[command]
    text = (ROOT / place).read_text()
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize("command", [line for line in commands() if line.startswith("make ")])
def test_every_make_command_has_its_target(command):
    target = shlex.split(command)[1]
    assert re.search(rf"^{re.escape(target)}:", MAKEFILE, re.MULTILINE)


def dtcourse(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("dtcourse"), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("command", RUN_HERE)
def test_the_cheap_ones_run(command):
    program, *arguments = shlex.split(command)
    if program == "make":
        done = subprocess.run(
            [program, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
    else:
        done = dtcourse(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert RUN_HERE[command] in done.stdout


@pytest.mark.parametrize("command", RUN_IN_CLI_TESTS)
def test_the_courses_own_commands_take_these_arguments_and_have_tests(command):
    _, name, *arguments = shlex.split(command)
    done = dtcourse(name, "--help")
    assert done.returncode == 0, done.stdout + done.stderr
    for option in (word for word in arguments if word.startswith("-")):
        assert option in done.stdout
    tests = "".join(
        path.read_text() for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)
    )
    assert re.search(rf"""["']{RUN_IN_CLI_TESTS[command]}["']""", tests), f"no test calls {name}"


@pytest.mark.parametrize("command", DRY)
def test_the_long_ones_name_things_that_exist(command):
    done = subprocess.run(
        ["make", "--dry-run", *shlex.split(command)[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert DRY[command] in done.stdout
    for module in re.findall(r"python -m (dtcourse[\w.]*)", done.stdout):
        path = ROOT.joinpath(*module.split("."))
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists()
    for script in re.findall(r"benchmarks/\w+\.py", done.stdout):
        assert (ROOT / script).exists()


def test_activation_finds_its_file():
    assert ACTIVATE in commands()
    activate = ROOT / ".venv" / "bin" / "activate"
    if not activate.exists():
        pytest.skip("the environment is not in .venv here")
    done = subprocess.run(
        ["bash", "-c", f"{ACTIVATE} && command -v dtcourse"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == str(ROOT / ".venv" / "bin" / "dtcourse")


def test_every_file_that_the_readme_links_exists():
    for text, link in re.findall(r"\[([^\]]*)\]\(([^)]*)\)", README):
        if not link.startswith("http"):
            assert (ROOT / link).exists(), f"[{text}]({link})"


def test_pytorchs_selector_is_linked():
    assert "](https://pytorch.org/get-started/locally/)" in README
