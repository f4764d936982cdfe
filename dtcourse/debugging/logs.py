"""The ranks' logs of a run, merged by clock (launch/rank_log.py writes them).

    launch(step, 4, env=logged_in("logs"))
    print(read_logs("logs"))
    #  +0.000 s  rank 0  INFO     train.py:12  step 0
    #  +0.004 s  rank 2  WARNING  train.py:15  loss is not finite

    python -m dtcourse.debugging logs logs --level WARNING --ranks 0 2

Ranks of one machine share a clock, and are merged exactly. Those of several are merged by each machine's calendar
clock, which another one's may differ from by milliseconds or, where nobody sets them, by more: a note says so.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dtcourse.debugging.sentences import ranks_in_words
from dtcourse.launch.rank_log import FORMAT, PRINT, VARIABLE

_LEVELS = {**logging.getLevelNamesMapping(), "PRINT": PRINT}


def logged_in(folder: str | Path, level: str = "INFO") -> dict[str, str]:
    """The environment that has ranks write their logs into `folder`: launch(..., env=logged_in("logs")).

    Raises ValueError for a level that is none.
    """
    return {VARIABLE: str(Path(folder).resolve()), f"{VARIABLE}_LEVEL": _known(level)}


@dataclass(frozen=True)
class Line:
    """One thing that was logged. time: seconds of the calendar's clock;  place: "train.py:12", empty of a print."""

    time: float
    rank: int
    level: str
    logger: str
    place: str
    message: str


@dataclass(frozen=True)
class Logs:
    """All lines in the order of time, and what is to be said of the files."""

    lines: list[Line]
    notes: list[str] = field(default_factory=list)

    def of(self, ranks: Collection[int] = (), level: str = "NOTSET") -> Logs:
        """Those of some ranks (all where none are given), of a level or above it."""
        least = _LEVELS[_known(level)]
        kept = [
            line
            for line in self.lines
            if (not ranks or line.rank in ranks) and _LEVELS.get(line.level, 0) >= least
        ]
        return Logs(kept, self.notes)

    def __str__(self) -> str:
        first = self.lines[0].time if self.lines else 0.0
        rows = [
            f"+{line.time - first:.3f} s  rank {line.rank}  {line.level:7}  "
            + (f"{line.place}  " if line.place else "")
            + line.message.replace("\n", "\n    ")
            for line in self.lines
        ]
        return "\n".join([*rows, *(f"({note})" for note in self.notes)])


def read_logs(folder: str | Path) -> Logs:
    """Reads what the ranks of a run have logged into a folder.

    Raises ValueError where no rank has.
    """
    folder = Path(folder)
    files = sorted(folder.glob("rank-*.log.jsonl"))
    if not files:
        raise ValueError(
            f"no rank has left a log in {str(folder)!r} (rank-0.log.jsonl, ...): launch(..., env=logged_in(folder)), "
            "DTCOURSE_LOGS=folder under torchrun, or rank_log.start(folder) in each rank"
        )
    notes: list[str] = []
    read = [found for file in files if (found := _read(file, notes)) is not None]
    # What the shared clock was at a moment of the calendar's, once a machine: a calendar may have been set meanwhile.
    calendar: dict[str, float] = {}
    for header, _ in read:
        calendar.setdefault(header["boot"], header["time"] - header["clock"])
    lines = [
        Line(
            calendar[header["boot"]] + line["clock"],
            header["rank"],
            *(line[name] for name in ("level", "logger", "place", "message")),
        )
        for header, of_rank in read
        for line in of_rank
    ]
    world_size = max((header["world_size"] for header, _ in read), default=0)
    missing = sorted({*range(world_size)} - {header["rank"] for header, _ in read})
    if missing:
        notes.append(f"{ranks_in_words(missing)} of {world_size} left no log")
    if len(calendar) > 1:
        notes.append(
            f"of {len(calendar)} machines, each by its own clock: their lines may be in another order"
        )
    return Logs(sorted(lines, key=lambda line: (line.time, line.rank)), notes)


def _read(file: Path, notes: list[str]) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    rows = file.read_text(errors="replace").splitlines()
    try:
        header = json.loads(rows[0])
        if header["format"] != FORMAT:
            raise ValueError(f"its first line is no log's of format {FORMAT}")
        {header[name] for name in ("rank", "world_size", "boot", "clock", "time")}
    except (ValueError, KeyError, IndexError, TypeError) as error:
        notes.append(f"{file.name} cannot be read ({type(error).__name__}: {error})")
        return None
    lines: list[dict[str, Any]] = []
    for row in rows[1:]:
        try:
            line = json.loads(row)
            {line[name] for name in ("clock", "level", "logger", "place", "message")}
        except (ValueError, KeyError, TypeError):
            notes.append(f"the log of rank {header['rank']} is cut off after {len(lines)} lines")
            break
        lines.append(line)
    return header, lines


def _known(level: str) -> str:
    if level.upper() not in _LEVELS:
        raise ValueError(
            f"level is one of {', '.join(sorted(_LEVELS, key=_LEVELS.__getitem__))}; got {level!r}"
        )
    return level.upper()
