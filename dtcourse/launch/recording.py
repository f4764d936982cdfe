"""The flight recorder of a rank, where DTCOURSE_FLIGHT_RECORDER asks for one (collectives/flight, dtcourse.debugging).

    launch(step, 4, env={"DTCOURSE_FLIGHT_RECORDER": "records"})

A rank that does not record imports nothing for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from dtcourse.launch import rank_log

VARIABLE = "DTCOURSE_FLIGHT_RECORDER"
_stacks: int | None = None


def stacks_to(descriptor: int) -> None:
    """Says where SIGUSR1 leaves Python's stacks in this rank: it still will, when it asks for a record too."""
    global _stacks
    _stacks = descriptor


def start() -> None:
    """In a rank: records from here on, and keeps its log (rank_log.py), where it is asked to."""
    rank_log.from_environment()
    if os.environ.get(VARIABLE):
        from dtcourse.collectives import flight

        flight.from_environment(_stacks)


def leave(how: str) -> None:
    """In a rank: the function is over. how: "returned", or what became of it."""
    rank_log.leave(how)
    if os.environ.get(VARIABLE):
        from dtcourse.collectives import flight

        flight.leave(how)
        flight.stop()


def wait_for_records(environment: Mapping[str, str], ranks: Sequence[int]) -> None:
    """In the launcher: SIGUSR1 has been sent to these ranks; returns when they have written what they are asked for."""
    time.sleep(0.2 if ranks else 0.0)
    folder, limit = environment.get(VARIABLE), time.monotonic() + 5.0
    if not folder:
        return
    files = [Path(folder) / f"rank-{rank}.jsonl" for rank in ranks]
    while not all(_is_new(file) for file in files) and time.monotonic() < limit:
        time.sleep(0.05)


def _is_new(file: Path) -> bool:
    try:
        return time.time() - file.stat().st_mtime < 10.0
    except OSError:
        return False
