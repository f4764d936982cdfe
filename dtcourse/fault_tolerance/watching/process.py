"""A process as /proc shows it: gone, stopped or there. Only on its own machine; elsewhere nothing is known of it."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

# "runs" is whatever may go on by itself: also who sleeps, or waits for a disk.
State = Literal["runs", "stopped", "gone", "unknown"]


@dataclass(frozen=True)
class Process:
    """Which process a rank is. Its number alone is given to another one when it is gone.

    machine: the machine's start and the space of process numbers (containers have their own)
    started: in the kernel's ticks since the machine's start; -1 where that is not told (macOS)
    """

    machine: str
    pid: int
    started: int

    def state(self) -> State:
        """What it does now."""
        if self.machine != this_machine() or self.started < 0:
            return "unknown"
        letter, started = letter_and_start(self.pid)
        if started != self.started or letter in "ZX":
            return "gone"
        return "stopped" if letter in "Tt" else "runs"


def this_process() -> Process:
    """The one that asks."""
    return Process(this_machine(), os.getpid(), letter_and_start(os.getpid())[1])


@cache
def this_machine() -> str:
    """The same for two processes that see each other in /proc, and for no others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def letter_and_start(pid: int) -> tuple[str, int]:
    """The state's letter and the start of a process; "X" and -1 where there is none."""
    try:
        # The name, in parentheses, may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, IndexError, ValueError):
        return "X", -1
