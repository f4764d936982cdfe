"""What takes longer than a second says so in one line, and nothing of the line remains."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import textwrap
import time

import pytest
from jupyter_client.manager import KernelManager

from dtcourse.launch import waiting

SLOW = """
    import time
    from dtcourse.launch import waiting

    with waiting.saying("counting"):
        time.sleep({seconds})
    print("counted")
"""


def in_a_terminal(code):
    """What a terminal gets from a fresh Python's standard error."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdin=theirs, stderr=theirs, stdout=subprocess.PIPE, env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    os.close(theirs)
    assert process.communicate(timeout=240)[0] == b"counted\n"
    try:
        return os.read(ours, 10_000).decode()
    except OSError:  # nobody has written, and nobody will
        return ""
    finally:
        os.close(ours)


def test_a_terminal_shows_one_line_and_wipes_it():
    assert in_a_terminal(SLOW.format(seconds=1.5)) == "\r\x1b[Kcounting ...\r\x1b[K"


def test_what_is_quick_says_nothing():
    assert in_a_terminal(SLOW.format(seconds=0)) == ""


def test_a_pipe_gets_no_line():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SLOW.format(seconds=1.5))],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("counted\n", "")


def test_an_error_inside_passes_through_and_the_line_goes(monkeypatch):
    seen = []

    class Place:
        def show(self, what):
            seen.append(what)
            return True

        def wipe(self):
            seen.append("wiped")

    monkeypatch.setattr(waiting, "_place", Place)
    monkeypatch.setattr(waiting, "PATIENCE", 0.01)
    with pytest.raises(LookupError), waiting.saying("looking"):
        time.sleep(0.3)
        raise LookupError
    assert seen == ["looking", "wiped"]


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """A kernel; call it with a cell's code and whether a person reads, get (kind, text) of what the cell shows."""
    manager = KernelManager()
    manager.start_kernel(cwd=str(tmp_path_factory.mktemp("notebook")))
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=240)

    def show(code, reader):
        request = client.execute(textwrap.dedent(code), allow_stdin=reader)
        seen = []
        while True:
            message = client.get_iopub_msg(timeout=240)
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                return seen
            if kind == "stream":
                seen.append((kind, content["text"]))
            elif kind in ("display_data", "update_display_data"):
                seen.append((kind, content["data"]["text/plain"]))
            elif kind in ("clear_output", "error"):
                seen.append((kind, content.get("evalue", "")))

    show("from dtcourse.launch import waiting\nimport time", reader=True)
    yield show
    client.stop_channels()
    manager.shutdown_kernel(now=True)


CELL = "with waiting.saying('counting'):\n    time.sleep(1.5)\n"


def test_a_notebook_with_a_reader_shows_a_line_and_takes_it_back(cells):
    seen = cells(CELL + "print('counted')", reader=True)
    assert seen == [("display_data", "counting ..."), ("clear_output", ""), ("stream", "counted\n")]


def test_a_notebook_that_a_program_runs_never_sees_it(cells):
    assert cells(CELL + "print('counted')", reader=False) == [("stream", "counted\n")]


def test_a_cell_that_has_shown_something_keeps_it(cells):
    assert cells("print('before')\n" + CELL, reader=True) == [("stream", "before\n")]


def test_what_another_thread_shows_meanwhile_stays(cells):
    seen = cells(
        """
        import threading
        other = threading.Timer(2, lambda: print("other"))
        with waiting.saying("counting"):
            other.start()
            other.join()
        """,
        reader=True,
    )
    assert seen == [
        ("display_data", "counting ..."), ("stream", "other\n"), ("update_display_data", ""),
    ]  # fmt: skip
