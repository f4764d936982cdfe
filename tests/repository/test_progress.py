"""Whoever watches the suite sees how far it is: a bar on a terminal, elsewhere a line a minute."""

from __future__ import annotations

import importlib
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def progress(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("progress")


def test_a_terminal_has_a_bar_and_a_failure_stands_whole_above_it(tmp_path):
    (tmp_path / "test_two.py").write_text(
        "def test_one():\n    pass\n\ndef test_two():\n    assert 'this' == 'that'\n"
    )
    ours, theirs = pty.openpty()
    os.set_inheritable(theirs, True)
    size = "import fcntl, struct, termios; fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack('HHHH', 30, 120, 0, 0))"
    script = f"{size}; import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", script, str(ROOT / "tools" / "recorded_pytest.py")]
    command += [str(tmp_path / "unit.jsonl"), "-p", "no:cacheprovider", "test_two.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tools")}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=theirs)
    os.close(theirs)
    printed = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # nobody holds the other end any more
            break
        if not piece:
            break
        printed += piece
    os.close(ours)
    assert process.wait() == 1
    lines = [line for line in re.split(r"[\r\n]+", printed.decode()) if line.strip()]
    assert any(re.match(r"unit: +50 %\|.*\| 1 of 2 tests, .* left$", line) for line in lines), lines
    assert any(re.match(r"E +AssertionError: assert 'this' == 'that'$", line) for line in lines)
    assert "1 failed" in lines[-1] and "1 passed" in lines[-1]  # the bar is gone


def test_elsewhere_a_line_says_how_far_it_is_also_while_a_test_hangs(progress, monkeypatch, capfd):
    monkeypatch.setattr(progress, "EVERY", 0.01)
    stage = progress.Progress("unit")
    stage.begins(1200)
    stage.began = time.monotonic() - 300
    for _ in range(400):
        stage.goes_on()
    printed, limit = "", time.monotonic() + 60
    while "unit: 400 of 1,200 tests in 5 minutes, about 10 left\n" not in printed:
        assert time.monotonic() < limit, printed
        printed += capfd.readouterr().out
    stage.ends()


def test_before_the_first_is_over_nobody_says_how_long_it_takes(progress):
    stage = progress.Progress("unit")
    stage.begins(7)
    stage.ends()
    assert stage.words() == "unit: 0 of 7 tests in 0 minutes"


def test_where_the_rest_waits_for_another_run_the_minutes_until_then_are_left(
    progress, monkeypatch
):
    monkeypatch.setenv("DTCOURSE_TEST_TURNS_END", str(time.time() + 90))
    stage = progress.Progress("turns")
    stage.begins(1000)
    stage.began = time.monotonic() - 300
    stage.goes_on()
    stage.ends()
    assert stage.words() == "turns: 1 of 1,000 tests in 5 minutes, about 1 left"
