"""A rank's record as a file: a line of JSON that says whose it is, then a line for each call, the newest first.

The newest first, since they are what a hang is about: a file that was cut off has lost the oldest. It is written beside
its place and moved there, so that nobody reads half of it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

from dtcourse.callers import lines_of
from dtcourse.collectives.flight.entry import readable
from dtcourse.collectives.flight.recorder import Recorder, of_process

FORMAT = 1
_writing = threading.Lock()


def file_of(folder: Path, rank: int) -> Path:
    """Where a rank's record is."""
    return folder / f"rank-{rank}.jsonl"


def write(folder: str | Path, reason: str = "asked", left: str = "") -> Path | None:
    """Writes this rank's record into `folder`, all or nothing, and returns its file; None where nothing is recorded.

    reason: why it is written;  left: how the rank left, where it has
    """
    recorder = of_process()
    if recorder is None:
        return None
    with _writing:
        if left and recorder.written_at == recorder.count:
            return None  # what was written during the hang says more than what came of it
        if reason not in ("asked", "leaving"):
            recorder.written_at = recorder.count
        rank, lines = rank_of_process(), _lines(recorder, reason, left)
        path = file_of(Path(folder), rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        partial.write_text("".join(json.dumps(line) + "\n" for line in lines))
        partial.replace(path)
    return path


def rank_of_process() -> int:
    """This process's rank in the default group, also before and after there is one."""
    return dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", 0))


def _lines(recorder: Recorder, reason: str, left: str) -> list[dict[str, Any]]:
    now = time.monotonic()
    entries = [entry.to_dict(now) for entry in list(recorder.entries)]
    where = sys._current_frames().get(recorder.main_thread or 0)
    world = dist.get_world_size() if dist.is_initialized() else os.environ.get("WORLD_SIZE", 1)
    header = {
        "format": FORMAT,
        "run": recorder.run,
        "rank": rank_of_process(),
        "world_size": int(world),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "reason": reason,
        "left": left,
        "at": [] if left else readable(lines_of(where)),
        "written": time.time(),
        "groups": recorder.groups,
        "collectives": recorder.collectives(),
        "messages": recorder.messages(),
        "calls": recorder.count,
        "entries": len(entries),
    }
    return [header, *reversed(entries)]
