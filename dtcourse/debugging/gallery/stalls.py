"""When ranks hang for good, found sooner than by a time limit, and on a busy machine not too soon.

Each rank's main thread sleeps, and has slept whenever it was looked at for two seconds. A rank that the machine gives
no processor is ready to run and does not sleep. Then each rank that has not left is asked for its record.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

LOOKS, EVERY = 20, 0.1  # seconds


def note_process(folder: Path) -> None:
    """In a rank: leaves its process's number."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{os.environ['RANK']}"
    partial.write_text(str(os.getpid()))
    partial.replace(folder / os.environ["RANK"])


def stalled(folder: Path, ranks: int, is_over: Callable[[], bool]) -> list[int]:
    """Waits until all ranks sleep, and returns their processes, by rank; none where the run was over before that."""
    asleep = 0
    while asleep < LOOKS:
        if is_over():
            return []
        asleep = asleep + 1 if _all_sleep(folder, ranks) else 0
        time.sleep(EVERY)
    return _processes(folder, ranks)


def ask_for_records(processes: list[int], files: list[Path], limit: float = 20.0) -> None:
    """Has each rank that has left no record write one, and waits for it."""
    end = time.monotonic() + limit
    for process, file in zip(processes, files, strict=True):
        if not file.exists():
            os.kill(process, signal.SIGUSR1)
    while not all(file.exists() for file in files) and time.monotonic() < end:
        time.sleep(EVERY)


def _processes(folder: Path, ranks: int) -> list[int]:
    files = [folder / str(rank) for rank in range(ranks)]
    return [int(file.read_text()) for file in files if file.exists()]


def _all_sleep(folder: Path, ranks: int) -> bool:
    processes = _processes(folder, ranks)
    try:
        states = {psutil.Process(process).status() for process in processes}
    except psutil.NoSuchProcess:
        return False
    return len(processes) == ranks and states <= {psutil.STATUS_SLEEPING, psutil.STATUS_IDLE}
