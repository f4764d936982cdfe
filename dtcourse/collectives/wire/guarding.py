"""One thread that watches over all groups of the process. It sleeps; it asks a store only for a rank that waits."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Protocol

TICK = 0.25


class Watched(Protocol):
    """A group's guard (guard.py)."""

    def check(self) -> None:
        """Looks whether anything is wrong. RuntimeError where the group's store has gone."""


_watched: weakref.WeakSet[Watched] = weakref.WeakSet()
_watcher: threading.Thread | None = None


def watch(guard: Watched) -> None:
    """From now on it is checked again and again."""
    global _watcher
    _watched.add(guard)
    if _watcher is None:
        _watcher = threading.Thread(target=_loop, daemon=True, name="dtcourse-guard")
        _watcher.start()


def unwatch(guard: Watched) -> None:
    """Ends the watch over a group that ends."""
    _watched.discard(guard)


def watched() -> list[Watched]:
    """Those of the groups that this process has."""
    return list(_watched)


def _loop() -> None:
    while True:
        time.sleep(TICK)
        for guard in watched():
            try:
                guard.check()
            except RuntimeError:  # the store is gone: the group ends, or its connections will tell
                unwatch(guard)
