"""How a server and its workers reach each other: p2p, and within a rank that is both, from one thread to the other."""

from __future__ import annotations

import queue
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from dtcourse import events
from dtcourse.asynchronous.parameter_servers.roles import PULL, PUSH
from dtcourse.collectives import p2p
from dtcourse.collectives.wire.arrivals import Pending
from dtcourse.emulation import clock
from dtcourse.parameters.replicas import Group


class Link:
    """Messages to and from the ranks of a group. Those to this rank itself cost nothing, and are not counted."""

    def __init__(self, group: Group = None) -> None:
        self.group = group
        self._rank = dist.get_rank(group)
        self._own: dict[int, queue.SimpleQueue[Any]] = {
            tag: queue.SimpleQueue() for tag in (PUSH, PULL)
        }

    def isend(self, tensor: torch.Tensor, rank: int, tag: int) -> dist.Work:
        """As p2p.isend, to this rank too."""
        if rank != self._rank:
            return p2p.isend(tensor, rank, self.group, tag)
        self._own[tag].put((tensor.clone(), events.now()))
        return Own(None, None)

    def irecv(self, tensor: torch.Tensor, rank: int, tag: int) -> dist.Work:
        """As p2p.irecv, from this rank too."""
        if rank != self._rank:
            return p2p.irecv(tensor, rank, self.group, tag)
        return Own(self._own[tag], tensor)

    def fail(self, error: BaseException) -> None:
        """Has every receive from this rank itself raise: the thread that would have sent is no more."""
        for messages in self._own.values():
            messages.put(error)


class Own(Pending):
    """A message of a rank to itself: taken from the queue where it is received, over at once where it was sent."""

    def __init__(
        self, messages: queue.SimpleQueue[Any] | None, tensor: torch.Tensor | None
    ) -> None:
        super().__init__()
        self._messages, self._tensor = messages, tensor

    def come(self, timeout: timedelta | None) -> None:
        if self._messages is None or self._tensor is None:
            return
        found = self._messages.get(timeout=timeout.total_seconds() if timeout else None)
        if isinstance(found, BaseException):
            self._messages.put(found)
            raise RuntimeError(f"its own server ended with {type(found).__name__}: {found}")
        sent, self.due = found
        self._tensor.copy_(sent)

    def wait(self, timeout: timedelta | None = None) -> bool:
        since = events.now()
        super().wait(timeout)
        clock.wait_until(self.due, since)
        return True
