"""One collective or message as the recorder keeps it: cheap to make, and read only when a record is written."""

from __future__ import annotations

import linecache
import time
import weakref
from typing import Any

import torch

from dtcourse.callers import Line


class Entry:
    """One call of one rank.

    number:    its place among all calls of this rank, from 1
    operation: "all_reduce", "isend", ...;  group: the group's name
    seq:       its place among the group's collectives, from 1; of a message, among those to or from that peer with its
               tag. Ranks of a right program have the same call at the same place
    sizes, dtype: of the tensors that must be alike on all ranks;  detail: op and root, where there are
    peer, tag: of a message; the peer is a rank of the default group, None where anybody may send
    lines:     the reader's own lines that called it, innermost first
    waits:     how often a wait() for it has returned;  waiting: since when, and from where, one has not
    """

    __slots__ = (
        "asynchronous", "begun", "detail", "dtype", "ended", "error", "group", "handle", "lines", "number",
        "operation", "peer", "seq", "sizes", "tag", "waited", "waiting", "waits",
    )  # fmt: skip

    def __init__(
        self,
        operation: str,
        group: str,
        tensors: list[torch.Tensor],
        detail: dict[str, Any] | None,
        lines: tuple[Line, ...],
        asynchronous: bool,
    ) -> None:
        self.operation, self.group, self.lines = operation, group, lines
        self.sizes = [t.shape for t in tensors]
        self.dtype = tensors[0].dtype if tensors else None
        self.detail, self.asynchronous = detail, asynchronous
        self.number = self.seq = self.waits = self.tag = 0
        self.peer: int | None = None
        self.begun, self.ended = time.monotonic(), 0.0
        self.error = ""
        self.waiting: tuple[float, tuple[Line, ...]] | None = None
        self.waited: tuple[Line, ...] = ()  # where the last wait that returned was called
        # Its Work, or a weak reference to it: who keeps a Work keeps its tensors.
        self.handle: Any = None

    def finish(self, error: BaseException | None = None) -> None:
        """It is over; again changes nothing."""
        if not self.ended:
            self.ended = time.monotonic()
            if error is not None:
                self.error = f"{type(error).__name__}: {error}".splitlines()[0]

    def wait_begins(self, lines: tuple[Line, ...]) -> None:
        """A wait() for it has been called, from these lines."""
        self.waiting = (time.monotonic(), lines)

    def wait_ends(self, error: BaseException | None = None) -> None:
        """That wait() has returned or raised."""
        if self.waiting is not None:
            self.waited, self.waiting = self.waiting[1], None
        self.waits += 1
        self.finish(error)

    def look(self) -> bool:
        """Whether it is over, asking its handle where nobody has waited for it yet."""
        if not self.ended:
            handle = self.handle() if isinstance(self.handle, weakref.ref) else self.handle
            if handle is not None and handle.is_completed():
                self.finish()
        if self.ended:
            self.handle = None
        return bool(self.ended)

    @property
    def blocked_since(self) -> float | None:
        """Since when its caller has waited for it; None where nobody waits now."""
        if self.waiting is not None:
            return self.waiting[0]
        return None if self.asynchronous or self.ended else self.begun

    def to_dict(self, now: float) -> dict[str, Any]:
        """As it is written. Times are seconds before `now`."""
        dropped = isinstance(self.handle, weakref.ref) and self.handle() is None
        over = self.look()
        since = self.blocked_since
        return {
            "number": self.number,
            "operation": self.operation,
            "group": self.group,
            "seq": self.seq,
            "sizes": [list(size) for size in self.sizes],
            "dtype": str(self.dtype).removeprefix("torch.") if self.dtype else "",
            "detail": self.detail or {},
            "peer": self.peer,
            "tag": self.tag,
            "lines": readable(self.lines),
            "state": ("failed" if self.error else "finished") if over else "started",
            "error": self.error,
            "asynchronous": self.asynchronous,
            "dropped": dropped and not over,
            "waits": self.waits,
            "waited": readable(self.waited),
            "waiting": None if since is None else round(now - since, 6),
            "waiting_at": readable(self.waiting[1] if self.waiting else ()),
            "begun": round(now - self.begun, 6),
        }


def readable(lines: tuple[Line, ...]) -> list[list[Any]]:
    """[file, line, function, the line's text] of each."""
    return [[*line, linecache.getline(line.file, line.line).strip()] for line in lines]
