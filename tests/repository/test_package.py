"""The package builds, and what a person types first works: make help, make lab, make lint."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import urllib.request
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    code = "import sys; from flit_core.buildapi import build_wheel; print(build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, folder], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return folder / done.stdout.strip()


def test_the_wheel_holds_the_package_its_licence_and_its_command(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (entry_points,) = [name for name in names if name.endswith("entry_points.txt")]
        assert "dtcourse=dtcourse.cli:app" in archive.read(entry_points).decode()
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        assert "Requires-Python: >=3.11" in archive.read(metadata).decode()
    for kind in ("*.py", "*.yml", "*.json", "*.js", "*.css"):
        for path in (ROOT / "dtcourse").rglob(kind):
            assert path.relative_to(ROOT).as_posix() in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests", "lessons", "my"))]


def test_the_wheel_works_away_from_the_checkout(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = "import dtcourse; print(dtcourse.__file__); print(dtcourse.__version__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=True,
    )
    place, version = done.stdout.split()
    assert Path(place).is_relative_to(tmp_path)
    assert version == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_make_alone_lists_every_command_of_the_makefile():
    done = make()
    assert done.returncode == 0
    listed = set(re.findall(r"^make (\S+)", done.stdout, re.MULTILINE))
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)[1].split()
    assert listed == set(phony)


def test_make_clean_would_not_touch_the_environment_or_a_students_work():
    done = make("--dry-run", "clean")
    words = done.stdout.split()
    assert "build" in words
    assert not {".venv", "my", "my/", "."} & set(words)


@pytest.mark.slow
def test_make_lab_opens_jupyterlab_on_lesson_01(tmp_path):
    if not (ROOT / ".venv" / "dtcourse-ready").exists():
        pytest.skip("this environment was not made by `make env`, and a test does not install")
    # a copy of lesson 01: its reader's own would be made in this checkout
    home = tmp_path / "course"
    (home / "lessons").mkdir(parents=True)
    shutil.copy(ROOT / "lessons" / "01-why-distributed.ipynb", home / "lessons")
    opened, log = tmp_path / "opened", tmp_path / "log"
    browser = tmp_path / "browser"  # writes down what it is asked to open
    browser.write_text(f'#!/bin/sh\necho "$1" > "{opened}.part"; mv "{opened}.part" "{opened}"\n')
    browser.chmod(0o755)
    with log.open("w") as output:
        server = subprocess.Popen(
            ["make", "lab", "LAB_ARGS=--ServerApp.port=0"],
            cwd=ROOT,
            env={**os.environ, "BROWSER": f"{browser} %s", "DTCOURSE_HOME": str(home)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        limit = time.monotonic() + 240
        while not opened.exists() and time.monotonic() < limit and server.poll() is None:
            time.sleep(0.1)
        assert opened.exists(), log.read_text()
        # JupyterLab hands the browser a local page that leads on, so that the token shows nowhere.
        page = Path(opened.read_text().strip().removeprefix("file://")).read_text()
        address = re.search(r'url=(http://[^"]+)"', page)[1]
        assert "/lab/tree/my/01-lesson-why-distributed.ipynb?" in address
        with urllib.request.urlopen(address, timeout=120) as response:
            assert "JupyterLab" in response.read().decode()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)
