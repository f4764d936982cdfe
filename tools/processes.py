"""Everything that one run of the suite started, and its end.

Tests start processes that leave their parent's session (ranks, kernels, servers) or lose their parent.
Two things find them all: they descend from pytest while it lives, and they inherit a mark in their
environment, which also a process has whose parents are gone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid

import psutil

MARK = "DTCOURSE_TEST_RUN"
GRACE = 5.0  # seconds in which pytest may end by itself, with its fixtures' clean-up


def mark_of_this_run() -> str:
    """A new mark. It begins with that of the run that we are part of, which ends us too."""
    return f"{os.environ.get(MARK, '')}/{uuid.uuid4().hex}"


def end_all(process: subprocess.Popen[bytes], mark: str) -> None:
    """Ask pytest to end, as Ctrl-C would, then kill what is left of it and of what it started."""
    family = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        family |= descendants(process.pid)
        process.kill()
    for _ in range(20):  # what dies may have started something just before
        left = {one for one in family | marked(mark) if alive(one)}
        if not left:
            return
        for one in left:
            family |= descendants(one.pid)
            try:
                one.kill()
            except psutil.Error:
                continue
        time.sleep(0.05)


def descendants(pid: int) -> set[psutil.Process]:
    try:
        return set(psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return set()


def marked(mark: str) -> set[psutil.Process]:
    """Processes with this mark, or one that begins with it."""
    found = set()
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK, "").startswith(mark) and process.pid != os.getpid():
                found.add(process)
        except psutil.Error:  # gone meanwhile, or another user's
            continue
    return found


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
