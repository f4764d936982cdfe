"""A file that torch.profiler has written (`export_chrome_trace`), as events of one rank; also one that is cut off.

Whose it is, the file says itself (distributedInfo); how its clock lies to ours is `merged_trace`'s business. A mark
helps: inside the profile, `mark()` writes our clock's time into the trace as the name of an annotation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dtcourse import events
from dtcourse.events import Event
from dtcourse.profiling.kernels import kind_of

MARK = "dtcourse clock "


def mark() -> None:
    """In a rank, inside torch.profiler.profile: writes what our clock says into the trace. Two or three are enough."""
    with torch.profiler.record_function(f"{MARK}{events.now():.9f}"):
        pass


@dataclass
class TorchTrace:
    """One rank's profile.

    path:       the file
    rank, world_size: as it says; None where it does not
    events:     spans, in seconds of Unix time as that machine had it, rank 0 where the file says none
    marks:      (our clock, the trace's), of each mark, in seconds
    complete:   whether the file ends as it should; else what came before the cut is here
    """

    path: Path
    rank: int | None = None
    world_size: int | None = None
    events: list[Event] = field(default_factory=list)
    marks: list[tuple[float, float]] = field(default_factory=list)
    complete: bool = True

    @classmethod
    def load(cls, path: str | Path) -> TorchTrace:
        """Reads a file. Raises ValueError for one that torch.profiler has not written."""
        path = Path(path)
        text = path.read_text()
        place = text.find('"traceEvents"')
        if place < 0:
            raise ValueError(
                f"{path} has no traceEvents: give what profiler.export_chrome_trace(path) writes"
            )
        found = cls(path)
        head = _head(text[:place])
        try:
            json.loads(text)
        except json.JSONDecodeError:
            found.complete = False
        info = head.get("distributedInfo") or {}
        found.rank, found.world_size = info.get("rank"), info.get("world_size")
        base = float(head.get("baseTimeNanoseconds", 0)) / 1e9
        for one in _objects(text, text.index("[", place) + 1):
            found._add(one, base)
        return found

    def _add(self, one: dict[str, Any], base: float) -> None:
        if one.get("ph") != "X" or not isinstance(one.get("ts"), int | float):
            return
        start = base + one["ts"] / 1e6
        name = str(one.get("name", ""))
        if name.startswith(MARK):
            self.marks.append((float(name.removeprefix(MARK)), start))
            return
        size = one.get("dur", 0) / 1e6
        if one.get("cat") in ("cpu_op", "user_annotation", "kernel", "gpu_memcpy", "gpu_memset"):
            lane = f"torch thread {one.get('tid')}"
            detail = {"from": "torch.profiler", "cat": one["cat"]}
            kind = kind_of(name)
            self.events.append(
                Event(name, kind, self.rank or 0, start, start + size, lane=lane, detail=detail)
            )


def _head(text: str) -> dict[str, Any]:
    """What stands before the events."""
    try:
        return dict(json.loads(text.rstrip().rstrip(",") + "}"))
    except json.JSONDecodeError:
        return {}


def _objects(text: str, place: int) -> Iterator[dict[str, Any]]:
    """The objects of a list from `place` on, as many as are whole."""
    decode = json.JSONDecoder().raw_decode
    while True:
        while place < len(text) and text[place] in " \t\r\n,":
            place += 1
        if place >= len(text) or text[place] == "]":
            return
        try:
            one, place = decode(text, place)
        except json.JSONDecodeError:
            return
        if isinstance(one, dict):
            yield one
