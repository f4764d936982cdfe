"""A file system that is far away: what a network file system or an object store costs, felt on a laptop.

Opening a file asks a server for it and waits one round trip, however small the file is; then its bytes come at the
rate of the link. So n files of b bytes take n * (latency + b / bandwidth) one after the other. Requests may be under
way at the same time: many readers share the bandwidth and hide each other's latency. Opens and bytes are counted.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from dtcourse import emulation

Opener = Callable[[str | Path], BinaryIO]


def local(path: str | Path) -> BinaryIO:
    """The file itself, as this machine has it."""
    return open(path, "rb")


class EmulatedStorage:
    """Opens real files, late and slowly: `image_folder(path, opener=storage.open)`.

    latency:   seconds from asking for a file to its first byte
    bandwidth: bytes a second of all open files together; None: no limit
    opens, bytes: counted since the start or `reset`, in this process
    In a rank with an emulated clock its time is emulated too; elsewhere it is slept.
    Readers in worker processes each have a link of their own and counters of their own.
    """

    def __init__(self, latency: float = 0.0, bandwidth: float | None = None) -> None:
        if latency < 0 or (bandwidth is not None and bandwidth <= 0):
            raise ValueError(
                f"latency is 0 s or more, bandwidth above 0 bytes/s; got {latency}, {bandwidth}"
            )
        self.latency, self.bandwidth = latency, bandwidth
        self.reset()

    def reset(self) -> None:
        """Counts from zero."""
        self.opens, self.bytes = 0, 0
        self._free = 0.0  # when the link has sent all that was asked of it
        self._lock = threading.Lock()

    def open(self, path: str | Path) -> BinaryIO:
        """The file for reading, one latency from now."""
        emulation.sleep(self.latency)
        with self._lock:
            self.opens += 1
        return io.BufferedReader(_Far(path, self))

    def _transfer(self, nbytes: int) -> None:
        with self._lock:
            self.bytes += nbytes
            if self.bandwidth is None:
                return
            self._free = max(self._free, emulation.now()) + nbytes / self.bandwidth
            wait = self._free - emulation.now()
        emulation.sleep(max(0.0, wait))

    def __getstate__(self) -> dict[str, Any]:
        return {"latency": self.latency, "bandwidth": self.bandwidth}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


class _Far(io.FileIO):
    """A file whose bytes take their time."""

    def __init__(self, path: str | Path, storage: EmulatedStorage) -> None:
        super().__init__(path, "r")
        self._storage = storage

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer) or 0
        self._storage._transfer(count)
        return count

    def readall(self) -> bytes:
        data = super().readall()
        self._storage._transfer(len(data))
        return data
