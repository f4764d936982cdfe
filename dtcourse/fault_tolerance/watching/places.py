"""Where beats lie, one for each rank, the last one over the one before: files of a folder, or keys of a store.

    place_of("/dev/shm/beats")         a folder that ranks and watcher see (launch on one machine, a shared disk)
    place_of("tcp://127.0.0.1:29500")  a TCPStore: torchrun's own, at MASTER_ADDR and MASTER_PORT
    place_of(None)                     that one by the environment, in a rank of launch or of torchrun

Each user has a connection of its own: one that the training shares may be held by a call that waits for minutes. A
FileStore is no place for beats: it keeps each value that a key ever had.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from dtcourse.launch import rendezvous

_LIMIT = timedelta(seconds=10)
Where = str | Path | None


class Place(Protocol):
    """What a Heartbeat writes to and a Watcher reads. OSError or RuntimeError where it cannot be reached."""

    def write(self, rank: int, data: bytes) -> None:
        """Puts it in the place of the rank's last one."""

    def read(self, ranks: Iterable[int]) -> dict[int, bytes]:
        """What those of these ranks have written last that have written."""


class Folder:
    """A file for each rank, which is replaced as a whole: nobody reads half a beat."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def write(self, rank: int, data: bytes) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        # Not flushed to the disk: a beat that a power cut takes with it is of no more use.
        aside = self.path / f".beat-{rank}-{os.getpid()}"
        try:
            aside.write_bytes(data)
            aside.replace(self.path / f"beat-{rank}")
        except OSError:
            with suppress(OSError):
                aside.unlink()
            raise

    def clear(self) -> None:
        """Takes all beats away, and nothing else that may lie in the folder."""
        for file in (*self.path.glob("beat-*"), *self.path.glob(".beat-*")):
            file.unlink(missing_ok=True)

    def read(self, ranks: Iterable[int]) -> dict[int, bytes]:
        found = {}
        for rank in ranks:
            with suppress(FileNotFoundError):
                found[rank] = (self.path / f"beat-{rank}").read_bytes()
        return found


class Store:
    """A key for each rank. The connection is made by the first who uses it, and anew where it has broken."""

    def __init__(self, where: str) -> None:
        self.where = where
        self._store: Any = None

    def write(self, rank: int, data: bytes) -> None:
        self._connected().set(_key(rank), data)

    def read(self, ranks: Iterable[int]) -> dict[int, bytes]:
        store = self._connected()
        return {rank: store.get(_key(rank)) for rank in ranks if store.check([_key(rank)])}

    def _connected(self) -> Any:
        if self._store is None:
            self._store = rendezvous.join(self.where, _LIMIT)
        return self._store


def place_of(where: Where) -> Place:
    """The place that a name means (see above). ValueError where None means none."""
    if where is None:
        names = ("MASTER_ADDR", "MASTER_PORT")
        if missing := [name for name in names if not os.environ.get(name)]:
            raise ValueError(
                f"{' and '.join(missing)} not set, so there is no store to beat into: name a folder that all ranks and "
                "the watcher see, or a TCPStore as tcp://address:port"
            )
        where = "tcp://{}:{}".format(*(os.environ[name] for name in names))
    return Store(str(where)) if str(where).startswith("tcp://") else Folder(where)


def _key(rank: int) -> str:
    return f"dtcourse/beat/{rank}"
