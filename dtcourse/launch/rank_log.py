"""A rank's log: one file a rank, a line of JSON for each thing that was logged, warned of or printed.

    launch(step, 4, env={"DTCOURSE_LOGS": "logs"})            # also under -m dtcourse.launch, torchrun or not
    rank_log.start("logs")                                    # or a line in any program

What the standard library's `logging` gets goes there, from any library, with warnings and printed lines (level PRINT),
and how the rank left. Times are of the clock that all processes of a machine share; the first line says what it was
when the file was begun, on that clock and on the calendar's. dtcourse.debugging merges the files. Where events are
recorded, writing a line is one, of kind "log" and with its bytes: a log that is too long shows in the timeline.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, TextIO

from dtcourse import events

VARIABLE = "DTCOURSE_LOGS"
FORMAT = 1
PRINT = 25  # between INFO and WARNING
_handler: _RankFile | None = None


def start(folder: str | Path, level: int | str = logging.INFO, prints: bool = True) -> Path:
    """From here on this rank's log is written into `folder`, and the file returned. Again changes nothing.

    level: of what is kept, logging's;  prints: keep printed lines too
    """
    global _handler
    if _handler is not None:
        return _handler.path
    rank = int(os.environ.get("RANK", 0))
    logging.addLevelName(PRINT, "PRINT")
    _handler = _RankFile(Path(folder).resolve() / f"rank-{rank}.log.jsonl", rank, level)
    root = logging.getLogger()
    root.addHandler(_handler)
    if root.level > _handler.level or root.level == logging.NOTSET:
        root.setLevel(_handler.level)
    logging.captureWarnings(True)
    if prints:
        sys.stdout = _Printed(sys.stdout, _handler)  # type: ignore[assignment]
    hook = sys.excepthook

    def note(kind: Any, error: Any, trace: Any) -> None:
        leave(f"raised {kind.__name__}: {error}".splitlines()[0])
        hook(kind, error, trace)

    sys.excepthook = note
    return _handler.path


def from_environment() -> None:
    """Starts where DTCOURSE_LOGS names a folder; DTCOURSE_LOGS_LEVEL says what is kept."""
    folder = os.environ.get(VARIABLE)
    if folder:
        start(folder, os.environ.get(f"{VARIABLE}_LEVEL", "INFO"))


def leave(how: str) -> None:
    """Notes how this rank leaves: "returned", "raised ValueError: ..."."""
    if _handler is not None:
        failed = how != "returned"
        _handler.write("ERROR" if failed else "INFO", "dtcourse", "", f"the rank {how}")


class _RankFile(logging.Handler):
    """Writes each record as a line, at once: a rank that is killed leaves what it has logged."""

    def __init__(self, path: Path, rank: int, level: int | str) -> None:
        super().__init__(level)
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", buffering=1)
        self._writing = threading.Lock()
        self._line(
            {
                "format": FORMAT,
                "rank": rank,
                "world_size": int(os.environ.get("WORLD_SIZE", 1)),
                "host": socket.gethostname(),
                "boot": _boot(),
                "pid": os.getpid(),
                "clock": time.monotonic(),
                "time": time.time(),
            }
        )

    def emit(self, record: logging.LogRecord) -> None:
        place = f"{Path(record.pathname).name}:{record.lineno}"
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + logging.Formatter().formatException(record.exc_info)
        self.write(record.levelname, record.name, place, message)

    def write(self, level: str, logger: str, place: str, message: str) -> None:
        """One line of the log, now."""
        start, thread = events.now(), threading.current_thread()
        said = {"level": level, "logger": logger, "place": place, "message": message}
        nbytes = self._line({"clock": time.monotonic(), **said})
        lane = "main" if thread is threading.main_thread() else thread.name
        events.add(level, "log", start, events.now(), bytes=nbytes, lane=lane)

    def _line(self, content: dict[str, Any]) -> int:
        """Writes it; its bytes (json writes nothing but ASCII)."""
        line = json.dumps(content) + "\n"
        with self._writing:
            self._file.write(line)
        return len(line)


class _Printed:
    """Standard output, of which each whole line is logged too."""

    def __init__(self, stream: TextIO, handler: _RankFile) -> None:
        self._stream, self._handler, self._rest = stream, handler, ""

    def write(self, text: str) -> int:
        *whole, self._rest = (self._rest + text).split("\n")
        for line in whole:
            self._handler.write("PRINT", "print", "", line)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _boot() -> str:
    """Of a machine since it was started: ranks with the same share a clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()
