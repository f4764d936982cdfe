"""`make env`, which `make lab` and `make test` begin with: the sentences for a Python that does not
suit, the second call that costs nothing, and installations that were cut short.

The environments are real (venv and pip), but what they install are three tiny packages made here, so
that nothing is downloaded.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import zipfile
from pathlib import Path

import pytest

from tests.turns import takes_turns

ROOT = Path(__file__).resolve().parent.parent.parent

# Unpacking pip into a fresh venv takes seconds, and on a busy machine many.
pytestmark = pytest.mark.timeout(1200)

# Without the environment that these tests run in: the base Python, and what the Makefile needs.
BASE_PYTHON = Path(getattr(sys, "_base_executable", sys.executable))
COMMANDS = ("sh", "awk", "sleep", "id", "env")


def make_wheel(folder: Path, name: str, version: str) -> None:
    """A package of one line, enough for pip."""
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", f"version = {version!r}\n")
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


BACKEND = """
import os, time, zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    time.sleep(float(os.environ.get("DAWDLE", "0")))
    name = "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        wheel.writestr("tiny.pth", os.getcwd())
        wheel.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: tiny\\nVersion: 1.0\\n")
        wheel.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("tiny-1.0.dist-info/RECORD", "")
    return name

def build_wheel(folder, config_settings=None, metadata_directory=None):
    raise NotImplementedError
"""


class Checkout:
    """A copy of what `make env` needs, with a small lock, and a PATH with nothing else on it."""

    def __init__(self, top: Path) -> None:
        self.top = top / "checkout"
        self.wheels = top / "wheels"
        self.bin = top / "bin"
        for folder in (self.top / "tools", self.wheels, self.bin):
            folder.mkdir(parents=True)
        for name in ("Makefile", "tools/setup", "tools/environment.py"):
            shutil.copy(ROOT / name, self.top / name)
        for name, version in (("torch", "2.13.0"), ("other", "1.0"), ("other", "2.0")):
            make_wheel(self.wheels, name, version)
        (self.top / "backend.py").write_text(BACKEND)
        (self.top / "pyproject.toml").write_text(
            '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        )
        self.lock("1.0")
        for name in COMMANDS:
            (self.bin / name).symlink_to(shutil.which(name))
        self.make = shutil.which("make")

    def lock(self, version: str) -> None:
        (self.top / "requirements.lock").write_text(f"torch==2.13.0\nother=={version}\n")

    def python(self, name: str = "python3", version: str | None = None) -> None:
        """Put a Python on PATH: the real one, or one that only says that it has this version."""
        path = self.bin / name
        path.unlink(missing_ok=True)
        body = f'exec "{BASE_PYTHON}" "$@"' if version is None else f'echo "{version}"'
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def environment(self, **more: str) -> dict[str, str]:
        return {
            "PATH": str(self.bin),
            "HOME": str(self.top.parent),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "PIP_CONFIG_FILE": os.devnull,
            **more,
        }

    def env(self, *variables: str, **more: str) -> subprocess.CompletedProcess[str]:
        """`make env`, as a user would type it."""
        return subprocess.run(
            [self.make, "env", *variables],
            cwd=self.top,
            env=self.environment(**more),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    def installed(self, package: str = "other") -> str:
        """The version that the environment's Python imports; empty where it cannot."""
        if not (self.top / ".venv" / "bin" / "python").exists():
            return ""
        code = f"import {package}; print({package}.version)"
        done = subprocess.run(
            [self.top / ".venv" / "bin" / "python", "-c", code],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.fixture(scope="module")
def first_install(tmp_path_factory) -> Checkout:
    """Installed once; tests that only look at it, or only add to it, share it."""
    made = Checkout(tmp_path_factory.mktemp("first"))
    made.python()
    done = made.env()
    assert done.returncode == 0, done.stdout + done.stderr
    # In a file or a pipe a line each: how much, how long, and every step.
    said = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in said] == ["dtcourse"] * 6 and not done.stderr
    assert "first use" in said[0] and ".venv is ready" in said[-1]
    assert "about 2,100 MB of disk and 5 minutes" in said[1]
    assert [line[10:16] for line in said[2:5]] == ["1 of 3", "2 of 3", "3 of 3"]
    assert not (made.top / ".venv" / "dtcourse-downloads").exists()
    return made


def test_no_python_gets_one_sentence(checkout):
    done = checkout.env()
    assert done.returncode != 0
    said = done.stderr.splitlines()[0]
    assert said.startswith("dtcourse: No Python was found, and the course needs 3.11 to 3.14.")
    assert "PYTHON=" in said
    assert "Traceback" not in done.stderr
    assert not (checkout.top / ".venv").exists()


def test_an_old_python_gets_one_sentence_that_names_it(checkout):
    checkout.python("python3", "3.10")
    done = checkout.env()
    assert done.returncode != 0
    assert "python3 is 3.10" in done.stderr.splitlines()[0]
    assert "3.11 to 3.14" in done.stderr.splitlines()[0]
    assert "Traceback" not in done.stderr


def test_a_python_that_is_too_new_is_refused_as_well(checkout):
    checkout.python("python3", "3.15")
    assert "python3 is 3.15" in checkout.env().stderr


def test_a_named_python_that_does_not_suit_is_named(checkout):
    checkout.python("mine", "3.9")
    checkout.python()  # the good one on PATH is not silently taken instead
    assert "PYTHON=mine is Python 3.9" in checkout.env("PYTHON=mine").stderr
    assert "PYTHON=nowhere does not start" in checkout.env("PYTHON=nowhere").stderr


def test_an_old_python3_is_passed_over_for_a_newer_one(checkout):
    checkout.python("python3", "3.8")
    taken = checkout.top.parent / "taken"
    checkout.python("python3.12")
    # It says 3.12 when asked, and when it is handed the work it only leaves a note.
    (checkout.bin / "python3.12").write_text(
        f'#!/bin/sh\nif [ "$1" = -c ]; then echo 3.12; else echo "$@" > "{taken}"; fi\n'
    )
    assert checkout.env().returncode == 0
    assert taken.read_text().strip() == "tools/environment.py"


def test_a_python_without_venv_gets_a_sentence(checkout):
    # Debian's python3 without python3-venv: `-m venv` fails.
    (checkout.bin / "python3").write_text(f'#!/bin/sh\nexec "{BASE_PYTHON}" "$@"\n')
    (checkout.bin / "python3").chmod(0o755)
    broken = checkout.top.parent / "broken"
    broken.mkdir()
    (broken / "venv.py").write_text("raise SystemExit('ensurepip is not available')\n")
    done = checkout.env(PYTHONPATH=str(broken))
    assert done.returncode != 0
    assert "python3-venv" in done.stderr and "ensurepip is not available" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_first_call_installs_torch_the_lock_and_the_course(first_install):
    assert first_install.installed("torch") == "2.13.0"
    assert first_install.installed("other") == "1.0"
    site = next((first_install.top / ".venv" / "lib").glob("python*/site-packages"))
    assert (site / "tiny.pth").read_text() == str(first_install.top)


@pytest.mark.slow
def test_the_second_call_computes_for_less_than_a_second(first_install):
    """Its processor time (0.1 s), which other programs do not stretch as they stretch the time on the clock."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = first_install.env(PIP_FIND_LINKS="")  # pip could not install anything now
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0


@pytest.mark.slow
def test_the_second_call_does_nothing_and_needs_no_python_on_path(first_install):
    ready = first_install.top / ".venv" / "dtcourse-ready"
    before = ready.stat().st_mtime_ns
    (first_install.bin / "python3").rename(first_install.bin / "hidden")
    done = first_install.env()
    (first_install.bin / "hidden").rename(first_install.bin / "python3")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert ready.stat().st_mtime_ns == before


def test_readme_names_the_same_figures():
    said = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    program = (ROOT / "tools" / "environment.py").read_text(encoding="utf-8")
    assert "about 2,100 MB on disk and 5 minutes" in said
    assert "MEGABYTES, MINUTES = 2_100, 5\n" in program


@pytest.mark.slow
@pytest.mark.stands_on("Makefile", "tools/setup", "tools/environment.py")
def test_on_a_terminal_a_bar_moves_while_pip_works(checkout):
    checkout.python()
    main, side = pty.openpty()
    environment = checkout.environment(
        DAWDLE="3", TERM="xterm"
    )  # long enough for the bar to move twice
    with subprocess.Popen(
        [checkout.make, "env"], cwd=checkout.top, env=environment, stdout=side, stderr=side
    ) as process:
        os.close(side)
        said = b""
        with contextlib.suppress(OSError):  # the terminal's other end is closed
            while part := os.read(main, 4096):
                said += part
    os.close(main)
    assert process.returncode == 0, said.decode()
    bars = re.findall(r"\[[#.]{30}\] [\d,]+ of about 2,100 MB, (\d+:\d\d)", said.decode())
    assert bars[0] == "0:01" or bars[0] == "0:00", said.decode()
    assert len(set(bars)) >= 3, said.decode()


@pytest.mark.slow
@pytest.mark.stands_on("Makefile", "tools/setup", "tools/environment.py")
def test_changes_are_noticed(checkout):
    """One environment through everything that can happen to it, since each fresh one costs seconds."""
    checkout.python()
    venv = checkout.top / ".venv"
    witness = venv / "witness"  # gone when the environment was made anew
    assert checkout.env().returncode == 0

    # Another lock: pip works on what is there.
    witness.touch()
    checkout.lock("2.0")
    assert "versions have changed" in checkout.env().stdout
    assert checkout.installed() == "2.0"
    assert witness.exists()

    # A lock that cannot be installed: an error, and never ready until it can; then from scratch.
    checkout.lock("3.0")
    done = checkout.env()
    assert done.returncode != 0
    assert "the versions of requirements.lock could not be installed" in done.stderr
    assert not (venv / "dtcourse-ready").exists()
    checkout.lock("2.0")
    assert "interrupted" in checkout.env().stdout
    assert checkout.installed() == "2.0"
    assert not witness.exists()

    # Its Python is gone, as after an upgrade of the system's.
    witness.touch()
    (venv / "bin" / "python").unlink()
    (venv / "bin" / "python").symlink_to(checkout.top / "no-such-python")
    assert "its Python is gone" in checkout.env().stdout
    assert checkout.installed() == "2.0"
    assert not witness.exists()

    # The folder has moved: scripts in a venv hold its old place.
    checkout.top = checkout.top.rename(checkout.top.with_name("moved checkout"))
    assert "the folder has moved" in checkout.env().stdout
    pip = (checkout.top / ".venv" / "bin" / "pip").read_text()
    assert str(checkout.top) in pip


@pytest.mark.slow
@pytest.mark.stands_on("Makefile", "tools/setup", "tools/environment.py")
def test_a_killed_installation_is_not_mistaken_for_done(checkout):
    checkout.python()
    process = subprocess.Popen(
        [checkout.make, "env"],
        cwd=checkout.top,
        env=checkout.environment(DAWDLE="600"),  # in the last step, when nearly all is there
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        limit = time.monotonic() + 300
        while checkout.installed() != "1.0" and time.monotonic() < limit:
            time.sleep(0.1)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert checkout.installed() == "1.0"
    assert not (checkout.top / ".venv" / "dtcourse-ready").exists()

    done = checkout.env()
    assert done.returncode == 0
    assert "interrupted" in done.stdout
    ready = json.loads((checkout.top / ".venv" / "dtcourse-ready").read_text())
    assert ready["place"] == str(checkout.top / ".venv")
    assert checkout.env().stdout == ""


@pytest.mark.slow
@pytest.mark.stands_on("Makefile", "tools/setup", "tools/environment.py")
def test_pip_args_go_to_torch_alone_and_are_remembered(checkout):
    checkout.python()
    elsewhere = checkout.top.parent / "elsewhere"
    elsewhere.mkdir()
    (checkout.wheels / "torch-2.13.0-py3-none-any.whl").unlink()
    make_wheel(elsewhere, "torch", "2.13.0+gpu")
    done = checkout.env()
    assert done.returncode != 0
    assert "torch could not be installed" in done.stderr

    done = checkout.env(f"PIP_ARGS=--find-links {elsewhere}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert checkout.installed("torch") == "2.13.0+gpu"  # and the lock's torch==2.13.0 left it there
    checkout.lock("2.0")
    assert checkout.env().returncode == 0  # without PIP_ARGS this time
    assert checkout.installed("torch") == "2.13.0+gpu"
    assert checkout.installed() == "2.0"


@takes_turns("Makefile", "tools/setup", "tools/environment.py")
def test_two_calls_at_once_install_one_after_the_other(checkout):
    """The second waits for the first one's lock."""
    checkout.python()
    (checkout.top / ".cache").mkdir()
    holder = subprocess.Popen(
        [
            BASE_PYTHON,
            "-c",
            textwrap.dedent("""
                import fcntl, sys
                handle = open(".cache/.venv.lock", "w")
                fcntl.flock(handle, fcntl.LOCK_EX)
                print("held", flush=True)
                sys.stdin.read()
            """),
        ],
        cwd=checkout.top,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout.readline() == "held\n"
    second = subprocess.Popen(
        [checkout.make, "env"],
        cwd=checkout.top,
        env=checkout.environment(PIP_FIND_LINKS=""),  # it cannot get far, and need not
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert "waiting" in second.stdout.readline()
    assert not (checkout.top / ".venv").exists()
    holder.communicate()
    assert "torch could not be installed" in second.communicate(timeout=300)[0]


def test_an_environment_that_is_only_linked_to_is_never_touched(checkout, tmp_path):
    """It is another checkout's: a second one, with other versions, once cleared it."""
    checkout.python()
    (tmp_path / "theirs" / "bin").mkdir(parents=True)
    link = checkout.top / ".venv"
    link.symlink_to(tmp_path / "theirs")
    done = checkout.env()
    assert done.returncode != 0 and "where it leads is no environment" in done.stderr
    (tmp_path / "theirs" / "bin" / "python").symlink_to(BASE_PYTHON)
    ready = tmp_path / "theirs" / "dtcourse-ready"
    ready.write_text(json.dumps({"fingerprint": "of another lock", "place": "elsewhere"}))
    before = sorted(path.name for path in (tmp_path / "theirs").rglob("*"))
    done = checkout.env()
    assert done.returncode == 0, done.stderr
    assert "it is used as it is" in done.stdout
    assert sorted(path.name for path in (tmp_path / "theirs").rglob("*")) == before
