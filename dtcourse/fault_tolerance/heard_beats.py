"""A run's watch by heartbeats: what Recovery asks of watching/.

    recovery = Recovery(start, folder, 4, watch=HeardBeats("/dev/shm/beats"))

    in train:  with Heartbeat("/dev/shm/beats") as watch: ... watch.step(number)

Deadline (silence.py) sees stopped ranks alone, and asks nothing of the training. By its beats a rank that hangs is
found too, and named, with the line where it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dtcourse.fault_tolerance.silence import Silent
from dtcourse.fault_tolerance.watching import Watcher, places


class HeardBeats:
    """Complains of ranks that are dead, stopped or hung by their beats.

    folder:   of the beats, which no other run uses at the time: each start begins without any
    patience: seconds in which each rank must have begun to beat
    """

    def __init__(self, folder: str | Path, patience: float = 600.0) -> None:
        self.folder, self.patience = Path(folder), patience
        self._watcher: Watcher | None = None

    def begin(self, size: int) -> None:
        """Another start. All ranks of the one before are gone, and what they said last would be taken for silence."""
        places.Folder(self.folder).clear()
        self._watcher = Watcher(self.folder, size, patience=self.patience)

    def hear(self, rank: int, message: object) -> None:
        """Beats come another way."""

    def look(self, pids: Sequence[int]) -> Silent | None:
        """The ranks that the others wait for, and what is wrong with them."""
        look = self._watcher.look() if self._watcher is not None else None
        if not look:
            return None
        return Silent(tuple(fault.rank for fault in look.reasons), str(look))
