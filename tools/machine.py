"""How fast this machine is just now, so that the suite's time limits suit it.

A fixed piece of work is done by as many processes at once as the suite has workers, and its time is
set against what it took where the suite's usual times were measured. Other programs that keep the
cores busy slow it down as they slow down the tests.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from contextlib import suppress

# What each process computes, and prints the seconds of: an interpreter's work, as most tests are.
WORK = """
import time
started = time.perf_counter()
table = {}
for number in range(1_500_000):
    table[number % 1000] = table.get(number % 997, 0) + number * number % 7
print(time.perf_counter() - started)
"""
USUAL = 0.30  # seconds of WORK on one of two processes, on the machine of the suite's usual times
TRIES = 5
# Threads that wait for work in an operator sleep, and do not turn round and round for some milliseconds first: where
# more kernels run than there are cores, that takes the processor from those who have work (two busy loops beside
# lesson 15: 47 s instead of 83, 14b: 36 instead of 56). What is computed is the same.
PATIENT = {"OMP_WAIT_POLICY": "passive"}


def slowness(processes: int = 2) -> float:
    """How many times as long as usual work takes now; 1.0 where it takes no longer. Takes two seconds."""
    return max(1.0, statistics.median(seconds(processes) for _ in range(TRIES)) / USUAL)


def seconds(processes: int) -> float:
    """Seconds for the slowest of so many processes that do the same work at once."""
    command = [sys.executable, "-I", "-S", "-c", WORK]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    return max(float(process.communicate()[0]) for process in running)


def words(slowness: float) -> str:
    """One line: cores, load, and how slow that makes the machine."""
    try:
        load = f", load {os.getloadavg()[0]:.1f}"
    except OSError:  # the system does not say
        load = ""
    return f"This machine: {os.cpu_count()} cores{load}; it takes {slowness:.1f} times as long as usual."


def schedule(batch: bool) -> None:
    """How the system shares out the processors among what this process starts from now on: for throughput, or as usual.

    For throughput (Linux's SCHED_BATCH, sched(7)) nobody who wakes up takes the processor from somebody at work. As
    usual gloo's threads do, from one another, and where that holds the lock that they want they turn round and round
    till their time is over: with four ranks on two cores three quarters of an all-reduce is that.
    """
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):  # a container may forbid it
            policy = os.SCHED_BATCH if batch else os.SCHED_OTHER
            os.sched_setscheduler(0, policy, os.sched_param(0))


if __name__ == "__main__":
    print(words(slowness()))
