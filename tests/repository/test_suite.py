"""The suite's own tools do what they say: the stages of `make test`, CI's script, the check for
processes left behind, and the reasons of skipped tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

# Most of the time goes into starting pytest again and again, which a busy machine stretches.
pytestmark = pytest.mark.timeout(1200)


def run(*command: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with the repository's settings and tools, and room for tests of its own."""
    for name in ("pyproject.toml", "tools/test.py", "tests/conftest.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def write_notebook(path: Path, source: str, output: str) -> None:
    cell = nbformat.v4.new_code_cell(source, execution_count=1)
    cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=output)]
    notebook = nbformat.v4.new_notebook(cells=[cell])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    path.parent.mkdir(exist_ok=True)
    nbformat.write(notebook, path)


MIXED = """
import pytest

def test_passes():
    pass

@pytest.mark.timing
def test_is_timed(request):
    assert not hasattr(request.config, "workerinput"), "timing tests run without xdist"

@pytest.mark.skip(reason="not here")
def test_is_skipped():
    pass

@pytest.mark.notebooks
def test_runs_a_notebook():
    pass

def test_fails():
    assert {outcome}
"""


@pytest.mark.slow
def test_the_stages_add_up_and_a_failure_shows(project):
    (project / "tests" / "test_mixed.py").write_text(MIXED.format(outcome="True"))
    write_notebook(project / "lessons" / "01-a.ipynb", "print(1 + 1)", "2\n")
    done = run(sys.executable, "tools/test.py", cwd=project, DTCOURSE_TEST_WORKERS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    # two unit tests, one timed, one notebook test; the lesson's one cell
    assert done.stdout.splitlines()[-1] == "5 passed, 0 failed, 1 skipped"

    (project / "tests" / "test_mixed.py").write_text(MIXED.format(outcome="False"))
    write_notebook(project / "lessons" / "01-a.ipynb", "print(1 + 1)", "3\n")
    stages = ("unit", "timing", "notebooks")
    done = run(sys.executable, "tools/test.py", *stages, cwd=project, DTCOURSE_TEST_WORKERS="0")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "2 passed, 2 failed, 1 skipped"
    assert "timing         1 passed" in done.stdout  # it ran although the stage before failed


@pytest.mark.slow
def test_a_stage_that_breaks_before_any_test_counts_as_failed(project):
    (project / "tests" / "test_broken.py").write_text("import no_such_module\n")
    done = run(sys.executable, "tools/test.py", "timing", cwd=project)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "0 passed, 1 failed, 0 skipped"


def test_an_unknown_stage_is_named(project):
    done = run(sys.executable, "tools/test.py", "units", cwd=project)
    assert done.returncode == 1
    assert done.stderr.startswith("No stage units; there are unit, timing, ")


LEAKS = """
import subprocess, sys

def test_starts_something(tmp_path):
    code = "import time; time.sleep({seconds})"
    # Through another process that ends at once, so init has adopted it when the module is over.
    start = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]])"
    subprocess.run([sys.executable, "-c", start, code], check=True)
"""


@pytest.mark.slow
def test_a_process_left_behind_is_found_named_and_ended(project):
    (project / "tests" / "test_leaks.py").write_text(LEAKS.format(seconds=61.25))
    done = run(sys.executable, "-m", "pytest", "-q", "tests", cwd=project)
    assert done.returncode == 1
    assert "left processes behind" in done.stdout
    assert "time.sleep(61.25)" in done.stdout
    running = run("ps", "-eo", "args", cwd=project).stdout.splitlines()
    assert not [
        line for line in running if "time.sleep(61.25)" in line and "-c import time" in line
    ]


@pytest.mark.slow
def test_a_process_that_leaves_in_time_is_fine(project):
    (project / "tests" / "test_leaks.py").write_text(LEAKS.format(seconds=0.5))
    done = run(sys.executable, "-m", "pytest", "-q", "tests", cwd=project)
    assert done.returncode == 0, done.stdout


def test_what_a_machine_lacks_is_skipped_with_the_reason(project):
    (project / "tests" / "test_marked.py").write_text(
        "import pytest\n\n@pytest.mark.browser\ndef test_seen():\n    pass\n\n"
        "@pytest.mark.gpu\ndef test_gpu():\n    pass\n"
    )
    done = run(
        sys.executable, "-m", "pytest", "-q", "tests", cwd=project, PATH="", CUDA_VISIBLE_DEVICES=""
    )
    assert done.returncode == 0, done.stdout
    assert "needs Chromium (apt-get install chromium); there is none on PATH" in done.stdout
    assert "needs a GPU that torch can use; there is none" in done.stdout


def test_a_misspelt_marker_is_an_error(project):
    (project / "tests" / "test_marked.py").write_text(
        "import pytest\n\n@pytest.mark.timming\ndef test_a():\n    pass\n"
    )
    done = run(sys.executable, "-m", "pytest", "-q", "tests", cwd=project)
    assert done.returncode == 2 and "timming" in done.stdout


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

    def run(self) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        done = subprocess.run(
            [shutil.which("bash"), ".ci/run"],
            cwd=self.top,
            env={"PATH": str(self.bin)},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return done, self.log.read_text().splitlines()


@pytest.fixture
def ci(tmp_path: Path) -> Ci:
    return Ci(tmp_path)


def test_ci_installs_what_is_missing_and_calls_the_readmes_command(ci):
    ci.command("apt-get")
    done, log = ci.run()
    assert done.returncode == 0, done.stderr
    installs = [line for line in log if line.startswith("apt-get install")]
    assert len(installs) == 1 and installs[0].endswith("chromium openmpi-bin")
    assert log[-1] == "make test"
    assert done.stdout.splitlines()[-1] == "1 passed, 0 failed"
    assert "make test" in (ROOT / "README.md").read_text()


def test_ci_installs_nothing_that_is_there(ci):
    for name in ("apt-get", "chromium", "mpirun"):
        ci.command(name)
    _, log = ci.run()
    assert not [line for line in log if line.startswith("apt-get")]
    assert log[-1] == "make test"


def test_ci_tries_again_and_goes_on_without(ci):
    ci.command("apt-get", "exit 100")
    done, log = ci.run()
    assert done.returncode == 0
    assert len([line for line in log if line == "apt-get update -q"]) == 3
    assert "could not install chromium openmpi-bin" in done.stdout
    assert log[-1] == "make test"


def test_ci_goes_on_where_it_is_not_root(ci):
    ci.command("apt-get")
    ci.command("id", "echo 1000")
    done, log = ci.run()
    assert not [line for line in log if line.startswith("apt-get")]
    assert "no way to install" in done.stdout
    assert done.returncode == 0


def test_ci_fails_where_the_suite_fails(ci):
    ci.command("apt-get")
    ci.command("make", "exit 2")
    done, _ = ci.run()
    assert done.returncode != 0
