"""The recorder on and off, by a call or by an environment variable."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import torch.distributed as dist

from dtcourse import torch_private
from dtcourse.collectives.flight.asking import Asking
from dtcourse.collectives.flight.record import file_of, rank_of_process, write
from dtcourse.collectives.flight.recorder import CAPACITY, Recorder, of_process, use
from dtcourse.collectives.flight.watched import Watched

# The folder; with _CAPACITY and _HANG, what start() takes besides. launch/recording.py asks for it without loading us.
VARIABLE = "DTCOURSE_FLIGHT_RECORDER"
HANG_AFTER = 60.0


class _State:
    """What `start` has begun, for `stop` to end."""

    folder: Path
    unwatch: Callable[[], None]
    asking: Asking
    excepthook: Any
    written = False  # the last word: how the rank left


_state: _State | None = None


def start(
    folder: str | Path,
    capacity: int = CAPACITY,
    hang_after: float = HANG_AFTER,
    stacks: int | None = None,
) -> None:
    """From here on this rank keeps its last calls, and writes them into `folder`: at SIGUSR1, when a call has waited
    for `hang_after` seconds on some rank, and when the rank leaves. Again changes nothing.

    capacity: calls that are kept
    stacks:   a descriptor to which SIGUSR1 is to write Python's stacks too

    Raises ValueError for a capacity or a time that is none.
    """
    global _state
    if not (isinstance(capacity, int) and capacity > 0):
        raise ValueError(f"capacity is how many calls are kept, 1 or more; got {capacity!r}")
    if not hang_after > 0:
        raise ValueError(f"hang_after is in seconds, more than 0; got {hang_after!r}")
    if _state is not None:
        return
    recorder, state = Recorder(capacity), _State()
    state.folder = Path(folder).resolve()
    state.folder.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):  # what an earlier run has left is not this one's
        file_of(state.folder, rank_of_process()).unlink()
    if dist.is_initialized():
        recorder.name_of(dist.group.WORLD)
    use(recorder)
    state.unwatch = torch_private.watch_groups(Watched())
    state.asking = Asking(recorder, state.folder, hang_after, stacks)
    state.excepthook = _note_exceptions()
    _state = state
    atexit.register(_at_exit)


def from_environment(stacks: int | None = None) -> bool:
    """Starts where DTCOURSE_FLIGHT_RECORDER names a folder. Whether it does."""
    folder = os.environ.get(VARIABLE)
    if folder:
        start(
            folder,
            int(os.environ.get(f"{VARIABLE}_CAPACITY", CAPACITY)),
            float(os.environ.get(f"{VARIABLE}_HANG", HANG_AFTER)),
            stacks,
        )
    return bool(folder)


def running() -> bool:
    """Whether this process records."""
    return of_process() is not None


def leave(how: str) -> None:
    """Writes the record of a rank that leaves, and how: "returned", "raised ValueError: ..."."""
    if _state is not None and not _state.written:
        _state.written = True
        with suppress(OSError):
            write(_state.folder, "leaving", how)


def stop() -> None:
    """Ends the recording. What has been written stays."""
    global _state
    if _state is None:
        return
    sys.excepthook = _state.excepthook
    _state.unwatch()
    _state.asking.close()
    atexit.unregister(_at_exit)
    _state = None
    use(None)


def _at_exit() -> None:
    leave("exited")


def _note_exceptions() -> Any:
    """Has an exception that ends the process be how it left. Returns the hook that there was."""
    before = sys.excepthook

    def note(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        leave(f"raised {kind.__name__}: {error}".splitlines()[0])
        return before(kind, error, trace)

    sys.excepthook = note
    return before
