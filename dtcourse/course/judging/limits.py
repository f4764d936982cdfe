"""How much an answer may take: memory, processes, disk. Some of it the system refuses, all of it is watched.

What the system refuses holds at once, but for one process at a time (`hold`). Threads of the judge watch all processes
of an answer together, and end them where they are too many or too large. That needs no control group, which few
containers and no ordinary user may make, and it binds root's answers too.
"""

from __future__ import annotations

import math
import os
import re
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from dtcourse.course.judging.bubblewrap import SCRATCH, SCRATCHES

MEMORY = 8 * 2**30  # bytes, of all processes together
LEAST_MEMORY = 2**30
PROCESSES = 128
TASKS = 512  # processes and threads
LARGEST_FILE = 2**31
INTERVAL = 0.1  # seconds
MOST_PATIENCE = 6.0  # times the seconds that an answer has where nothing else runs


def memory() -> int:
    """The bytes that an answer may use on this machine now: MEMORY, or three quarters of what is free."""
    import psutil

    return min(MEMORY, max(LEAST_MEMORY, psutil.virtual_memory().available * 3 // 4))


def tasks() -> int | None:
    """The limit of processes and threads that the system can hold for a sandbox's own; None where it cannot.

    Root's sandboxes run under a number of their own. An ordinary user's count with all that the user runs, up to Linux
    5.14, which counts by user namespace.
    """
    version = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))
    return TASKS if os.geteuid() == 0 or version >= (5, 14) else None


def patience(seconds: float) -> float:
    """The seconds to wait for what takes at most `seconds` where nothing else runs.

    On a busy machine an answer gets the share of a core that the load leaves, and is no worse for it.
    """
    with suppress(OSError, AttributeError):  # Windows counts no load
        share = os.getloadavg()[0] / (os.cpu_count() or 1)
        return math.ceil(seconds * min(MOST_PATIENCE, max(1.0, share)))
    return seconds


def hold(memory: int, tasks: int | None) -> None:
    """In the answer's process, before its code runs: limits that the system holds,
    for it and for all that it starts.
    """
    import resource

    limits = {"CORE": 0, "FSIZE": LARGEST_FILE}
    if sys.platform == "linux":
        limits["DATA"] = memory
    if tasks is not None:
        limits["NPROC"] = tasks
    for name, value in limits.items():
        with suppress(ValueError, OSError):
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))


class Watch:
    """Looks at an answer's processes until it is stopped; where they take too much, it calls `end` and is done.

    One thread counts and another measures, since who measures waits: the system says what a process has for itself when
    that process is not just forking, and answers that fork without end always are.

    pid:     the process that all of them come from
    confined: whether that is bubblewrap's
    took:    what they took too much of ("start more than 128 processes"): what ended them, and a disk that was full
    ended:   that of them which ended them, or ""
    """

    def __init__(self, pid: int, confined: bool, memory: int, end: Callable[[], None]) -> None:
        self.memory, self.end = memory, end
        self.took: list[str] = []
        self.ended = ""
        self._processes = _Sandboxed(pid) if confined else _Descendants(pid)
        self._stopped = threading.Event()
        self._shared = _shared_memory()
        self._threads = [
            threading.Thread(target=self._repeat, args=(look,), name=name, daemon=True)
            for look, name in (
                (self._count, "dtcourse-answer-number"),
                (self._measure, "dtcourse-answer-size"),
            )
        ]

    def start(self) -> None:
        """From now on."""
        for thread in self._threads:
            thread.start()

    def look(self) -> None:
        """One look, without ending anything."""
        self._count()
        if not self.ended:
            self._measure()

    def stop(self) -> None:
        """Ends the watch, not what it watches."""
        self._stopped.set()
        for thread in self._threads:
            if thread.is_alive() and threading.current_thread() is not thread:
                thread.join(5)

    def _repeat(self, look: Callable[[], None]) -> None:
        while not self._stopped.wait(self._processes.interval):
            look()
            if self.ended:
                self._stopped.set()
                self.end()
                return

    def _count(self) -> None:
        if self._processes.number() > PROCESSES:
            self._found(f"start more than {PROCESSES} processes")

    def _measure(self) -> None:
        used = self._processes.at_most()
        # What no process has mapped (a file in memory, a disk of memory) shows in the machine's sum alone.
        files = max(0, _shared_memory() - self._shared)
        if used + files > self.memory and self._processes.exact() + files > self.memory:
            self._count()  # too many of them are too large too
            self._found(f"use more than {in_words(self.memory)} of memory")
        if self._processes.full():
            self._took(f"write more than {in_words(SCRATCH)}")

    def _found(self, words: str) -> None:
        """What ends them: the first of it."""
        self.ended = self.ended or words
        self._took(self.ended)

    def _took(self, words: str) -> None:
        if words not in self.took:
            self.took.append(words)


class _Sandboxed:
    """Processes that have a /proc of their own, which lists them and nobody else."""

    interval = INTERVAL

    def __init__(self, pid: int) -> None:
        self.root = f"/proc/{first_inside(pid)}/root"

    def number(self) -> int:
        """How many there are."""
        return len(self._everyone())

    def at_most(self) -> int:
        """At most so many bytes for themselves: what two of them share counts twice."""
        pages = 0
        for name in self._everyone():
            with suppress(OSError), open(f"{self.root}/proc/{name}/statm") as file:
                _, resident, shared, *_ = map(int, file.read().split())
                pages += resident - shared
        return pages * os.sysconf("SC_PAGE_SIZE")

    def exact(self) -> int:
        """The bytes, each counted once. It takes the system milliseconds a process, so only where it matters."""
        total = 0
        for name in self._everyone():
            with suppress(OSError), open(f"{self.root}/proc/{name}/smaps_rollup") as file:
                total += sum(map(int, re.findall(r"^Pss_Anon: *(\d+)", file.read(), re.MULTILINE)))
        return total << 10

    def _everyone(self) -> list[str]:
        with suppress(OSError):
            return list(filter(str.isdigit, os.listdir(f"{self.root}/proc")))
        return []

    def full(self) -> bool:
        """Whether nothing more can be written."""
        for folder in SCRATCHES:
            with suppress(OSError):
                if os.statvfs(self.root + folder).f_bavail == 0:
                    return True
        return False


class _Descendants:
    """The children of a process, and theirs: in a list of all the machine's processes, which takes a while to read."""

    interval = 0.25

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def number(self) -> int:
        """See above."""
        return len(self._everyone())

    def at_most(self) -> int:
        """See above."""
        import psutil

        total = 0
        for process in self._everyone():
            with suppress(psutil.Error):
                info = process.memory_info()
                total += info.rss - getattr(info, "shared", 0)
        return total

    def exact(self) -> int:
        """See above."""
        import psutil

        total = 0
        for process in self._everyone():
            with suppress(psutil.Error):
                total += process.memory_full_info().uss
        return total

    def _everyone(self) -> list[Any]:
        import psutil

        with suppress(psutil.Error):
            root = psutil.Process(self.pid)
            return [root, *root.children(recursive=True)]
        return []

    def full(self) -> bool:
        """Nobody can say: it is the machine's own disk."""
        return False


def first_inside(pid: int) -> int | None:
    """The first process of the sandbox that bubblewrap's process `pid` has made; the others end with it."""
    import psutil

    with suppress(psutil.Error):
        return next((child.pid for child in psutil.Process(pid).children()), None)
    return None


def _shared_memory() -> int:
    import psutil

    return getattr(psutil.virtual_memory(), "shared", 0)


def met(sentence: str, memory: int) -> str:
    """What an answer took too much of, where its error is the system's own about that; else nothing."""
    meanings = {
        "[Errno 28]": f"write more than {in_words(SCRATCH)}",
        "[Errno 27]": f"write a file of more than {in_words(LARGEST_FILE)}",
        "can't start new thread": f"start more than {TASKS} threads",
        "MemoryError": f"use more than {in_words(memory)} of memory",
        "can't allocate memory": f"use more than {in_words(memory)} of memory",
    }
    return next((meaning for words, meaning in meanings.items() if words in sentence), "")


def in_words(size: int) -> str:
    """Bytes, for a sentence."""
    return f"{size / 2**30:.3g} GB" if size >= 2**30 else f"{size >> 20} MB"
