"""What tests/conftest.py promises for every test: no process left behind, skips with their reason, limits."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

from dtcourse import launch

ROOT = Path(__file__).resolve().parents[2]

# Most of the time goes into starting pytest again and again, which a busy machine stretches.
pytestmark = pytest.mark.timeout(1200)

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
    project.write("test_leaks.py", LEAKS.format(seconds=61.25))
    # It is waited for: as long as on a machine ten times as fast, since it would not leave in ten times that either.
    done = project.run(sys.executable, "-m", "pytest", "-q", "tests", DTCOURSE_TEST_SLOWNESS="0.1")
    assert done.returncode == 1
    assert "left processes behind" in done.stdout
    assert "time.sleep(61.25)" in done.stdout
    running = project.run("ps", "-eo", "args").stdout.splitlines()
    assert not [
        line for line in running if "time.sleep(61.25)" in line and "-c import time" in line
    ]


@pytest.mark.slow
def test_a_process_that_leaves_in_time_is_fine(project):
    project.write("test_leaks.py", LEAKS.format(seconds=0.5))
    done = project.run(sys.executable, "-m", "pytest", "-q", "tests")
    assert done.returncode == 0, done.stdout


def test_what_a_machine_lacks_is_skipped_with_the_reason(project):
    project.write(
        "test_marked.py",
        "import pytest\n\n@pytest.mark.browser\ndef test_seen():\n    pass\n\n"
        "@pytest.mark.gpu\ndef test_gpu():\n    pass\n",
    )
    done = project.run(
        sys.executable, "-m", "pytest", "-q", "tests", PATH="", CUDA_VISIBLE_DEVICES=""
    )
    assert done.returncode == 0, done.stdout
    assert "needs playwright and Chromium (apt-get install chromium)" in done.stdout
    assert "needs a GPU that torch can use" in done.stdout
    assert "2 skipped" in done.stdout


def test_a_need_that_is_on_no_list_is_an_error(project):
    project.write(
        "test_marked.py", "import pytest\n\n@pytest.mark.needs('gti')\ndef test_a():\n    pass\n"
    )
    done = project.run(sys.executable, "-m", "pytest", "-q", "tests")
    assert done.returncode not in (0, 1) and "gti" in done.stdout + done.stderr


def test_a_misspelt_marker_is_an_error(project):
    project.write(
        "test_marked.py", "import pytest\n\n@pytest.mark.timming\ndef test_a():\n    pass\n"
    )
    done = project.run(sys.executable, "-m", "pytest", "-q", "tests")
    assert done.returncode == 2 and "timming" in done.stdout


def test_what_waits_is_not_collected_and_counted_by_its_reason(project):
    """One test by its own mark and one by its file's, which -m chooses from; without a share all are tried."""
    marked = "import pytest\n\n{}\ndef test_a():\n    pass\n\ndef test_b():\n    pass\n"
    project.write("test_one.py", marked.format("@pytest.mark.stands_on('dtcourse/')"))
    project.write("test_file.py", marked.format("pytestmark = pytest.mark.stands_on(place=1)\n"))
    command = [sys.executable, "-m", "pytest", "-q", "tests", "-n", "1"]
    assert "4 passed" in project.run(*command).stdout
    assert "1 passed" in project.run(*command, DTCOURSE_TEST_SHARE="fixed").stdout


def test_the_garbage_collector_passes_over_what_was_collected():
    assert gc.isenabled() and gc.get_freeze_count() > 0


def test_a_rank_has_what_the_modules_of_tests_import():
    here = {
        "__name__": "__main__"
    }  # so that the function goes by value, and the rank imports no module of tests
    exec("def loaded():\n    import sys\n    return set(sys.modules)", here)
    wanted = {"pytest", "hypothesis.strategies", "torch.distributed.optim"}
    assert wanted <= launch(here["loaded"], 1)[0]
