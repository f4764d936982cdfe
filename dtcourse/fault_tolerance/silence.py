"""Which ranks are stopped, seen from outside, where the launch is.

A rank that was sent SIGSTOP, or stands in a debugger, neither works nor dies: its connections stay, and its peers wait
for it in their next collective, for ever. launch would notice at its time limit. The system knows: the state of such a
process is T (`man 5 proc`), and that of one that only gets no processor never is. So however busy the machine is, a
healthy rank is not taken for a stopped one.

A rank that runs and makes no progress is another matter: for that there is a limit between two steps, and it is to be
generous, as the first step of a start comes after the import of all that it needs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dtcourse.fault_tolerance.watching.process import letter_and_start


@dataclass(frozen=True)
class Silent:
    """Why a launch is to end: the ranks by whose fault, none where that is not known, and a sentence on it."""

    ranks: tuple[int, ...]
    why: str


class Watch(Protocol):
    """Looks at the ranks of one start after another."""

    def begin(self, size: int) -> None:
        """Another start, of so many ranks: what was seen of the one before does not count."""

    def hear(self, rank: int, message: object) -> None:
        """A message of a rank has come."""

    def look(self, pids: Sequence[int]) -> Silent | None:
        """What is wrong by now. pids: by rank; none where the ranks are not there yet, or elsewhere."""


class Deadline:
    """Complains of ranks that are stopped for `stopped` seconds, and of a run that says nothing for `silent` seconds.

    Where there is no /proc, the second alone finds a stopped rank. Raises ValueError for times that are none.
    """

    def __init__(self, stopped: float = 2.0, silent: float = 600.0) -> None:
        if not 0 < stopped <= silent:
            raise ValueError(
                f"stopped and silent are seconds, the second not below the first; got {stopped!r}, {silent!r}"
            )
        self.stopped, self.silent = stopped, silent
        self.begin(0)

    def begin(self, size: int) -> None:
        """Another start."""
        self._heard = time.monotonic()
        self._since: dict[int, float] = {}

    def hear(self, rank: int, message: object) -> None:
        """Any message is a sign of life."""
        self._heard = time.monotonic()

    def look(self, pids: Sequence[int]) -> Silent | None:
        """What is wrong by now."""
        now = time.monotonic()
        standing = {rank for rank, pid in enumerate(pids) if state(pid) in ("T", "t")}
        self._since = {rank: self._since.get(rank, now) for rank in sorted(standing)}
        if any(now - since >= self.stopped for since in self._since.values()):
            ranks = tuple(self._since)
            told = ", ".join(f"rank {r} for {now - self._since[r]:.1f} s" for r in ranks)
            return Silent(ranks, f"stopped: {told}")
        if now - self._heard >= self.silent:
            return Silent((), f"no word from any rank for {now - self._heard:.1f} s")
        return None


def state(pid: int) -> str:
    """One letter of the system's on a process: R, S, D, T, Z ...; empty where it is gone, or nothing is told."""
    letter, _ = letter_and_start(pid)
    return "" if letter == "X" else letter
