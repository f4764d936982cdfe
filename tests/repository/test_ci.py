"""What CI's script does on machines that lack this or that: each command only writes down that it was called."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


class Ci:
    """`.ci/run` on a machine made of scripts: each command only writes down that it was called."""

    def __init__(self, top: Path) -> None:
        self.bin, self.log, self.top = top / "bin", top / "log", top / "checkout"
        (self.top / ".ci").mkdir(parents=True)
        shutil.copy(ROOT / ".ci" / "run", self.top / ".ci" / "run")
        self.bin.mkdir()
        (self.bin / "dirname").symlink_to(shutil.which("dirname"))
        self.command("id", "echo 0")
        self.command("sleep")
        self.command("make", "echo 1 passed, 0 failed")

    def command(self, name: str, body: str = "") -> None:
        path = self.bin / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> "{self.log}"\n{body}\n')
        path.chmod(0o755)

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [shutil.which("bash"), ".ci/run"],
            cwd=self.top,
            env={
                "PATH": str(self.bin),
                "PYTHONDONTWRITEBYTECODE": "1",
                "DEBIAN_PYTHON": str(self.bin / "debians"),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        process = self.start()
        out, errors = process.communicate(timeout=120)
        done = subprocess.CompletedProcess(process.args, process.returncode, out, errors)
        return done, self.log.read_text().splitlines()


@pytest.fixture
def ci(tmp_path: Path) -> Ci:
    return Ci(tmp_path)


def test_what_is_imported_is_compiled_once_as_at_our_users(ci):
    ci.command("apt-get")
    ci.command("make", 'echo "${PYTHONDONTWRITEBYTECODE-compiled}"')
    done, _ = ci.run()
    assert done.stdout.splitlines()[-1] == "compiled"


def test_ci_installs_what_is_missing_and_calls_the_readmes_command(ci):
    ci.command("apt-get")
    done, log = ci.run()
    assert done.returncode == 0, done.stderr
    installs = [line for line in log if line.startswith("apt-get install")]
    assert len(installs) == 1 and installs[0].endswith(
        "chromium openmpi-bin bubblewrap slurm-wlm munge iproute2"
    )
    assert log[-1] == "make test-ci"
    assert done.stdout.splitlines()[-1] == "1 passed, 0 failed"
    assert "make test-ci" in (ROOT / "README.md").read_text()


def test_ci_installs_nothing_that_is_there(ci):
    for name in ("apt-get", "chromium", "mpirun", "bwrap", "sbatch", "ip"):
        ci.command(name)
    _, log = ci.run()
    assert not [line for line in log if line.startswith("apt-get")]
    assert log[-1] == "make test-ci"


def test_ci_tries_again_and_goes_on_without(ci):
    ci.command("apt-get", "exit 100")
    done, log = ci.run()
    assert done.returncode == 0
    assert len([line for line in log if line == "apt-get update -q"]) == 3
    assert "could not install chromium openmpi-bin bubblewrap" in done.stdout
    assert log[-1] == "make test-ci"


def test_ci_goes_on_where_it_is_not_root(ci):
    ci.command("apt-get")
    ci.command("id", "echo 1000")
    done, log = ci.run()
    assert not [line for line in log if line.startswith("apt-get")]
    assert "no way to install" in done.stdout
    assert done.returncode == 0


def test_ci_has_the_suite_end_before_ci_ends_it(ci):
    ci.command("apt-get")
    ci.command("make", 'echo "until $DTCOURSE_TEST_UNTIL"')
    began = time.time()
    done, _ = ci.run()
    until = int(done.stdout.splitlines()[-1].removeprefix("until "))
    assert began + 80 * 60 < until < time.time() + 85 * 60


@pytest.mark.parametrize("code", [0, 1, 2])
def test_ci_tells_the_suite_how_a_machine_without_the_programs_fared(ci, code):
    ci.command("apt-get")
    ci.command("make", f'[ "$1" = test-bare ] && exit {code}; echo "bare $DTCOURSE_TEST_BARE"')
    done, log = ci.run()
    assert "make test-bare" in log and log[-1] == "make test-ci"
    assert done.stdout.splitlines()[-1] == f"bare {code}"


@pytest.mark.parametrize("code", [0, 1, 2])
def test_ci_tells_the_suite_how_another_python_fared(ci, code):
    ci.command("apt-get")
    ci.command("make", f'[ "$1" = test-python ] && exit {code}; echo "other $DTCOURSE_TEST_PYTHON"')
    done, log = ci.run()
    assert log.index("make test-python") > log.index("make test-bare")
    assert done.stdout.splitlines()[-1] == f"other {code}"


def test_the_bare_machine_has_debians_python_where_there_is_one(ci):
    ci.command("apt-get")
    ci.command("debians")
    _, log = ci.run()
    named = f"VENV=build/python-debian PYTHON={ci.bin / 'debians'}"
    assert f"make env {named}" in log and f"make test-bare {named}" in log
    assert log[-1] == "make test-ci"  # which has its own


@pytest.mark.parametrize("fails", ["debians", "make"])
def test_ci_goes_on_where_debians_python_does_not_suit(ci, fails):
    ci.command("apt-get")
    ci.command("debians")
    ci.command(fails, 'case "$*" in env*|-c*) exit 1;; esac')
    done, log = ci.run()
    assert done.returncode == 0
    assert "make test-bare" in log
    assert "the bare machine has the suite's own Python" in done.stdout


def test_a_signal_to_ci_reaches_the_suite(ci):
    ready, told = ci.top / "ready", ci.top / "told"
    ci.command("apt-get")
    ci.command("touch", f'exec {shutil.which("touch")} "$@"')
    wait = f'trap "touch {told}; exit 143" TERM; touch {ready}; while :; do :; done'
    ci.command("make", f'[ "$1" = test-ci ] || exit 0; {wait}')
    process = ci.start()
    while not ready.exists() and process.poll() is None:
        time.sleep(0.05)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert told.exists()


def test_ci_fails_where_the_suite_fails(ci):
    ci.command("apt-get")
    ci.command("make", "exit 2")
    done, _ = ci.run()
    assert done.returncode != 0
