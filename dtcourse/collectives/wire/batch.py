"""Messages that start together: what NCCL needs where a rank sends and receives at once.

On NCCL a message has to wait for those that were posted before it on its stream, and a send is over when it has been
received. Unbatched sends and receives of two ranks share a stream, in both directions; where the group was given its
device at once, as launch gives it, those of all its ranks do. So two ranks that each post a receive and then a send
wait for each other for ever, and so do two that send first. Posted in one batch, they are one operation to NCCL:

    with p2p.batch(group):                 # as dist.batch_isend_irecv does
        works = [p2p.irecv(y, left, group), p2p.isend(x, right, group)]
    for work in works:
        work.wait()

Both ends of a message post it in a batch, or neither does. On gloo every message is on its way when it is posted, and a
batch changes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch

from dtcourse import device
from dtcourse.torch_private import batching

_open = threading.local()


class Batch:
    """Messages of one channel, in one thread, up to `end`."""

    def __init__(self, channel: Any) -> None:
        self.channel, self.members = channel, []  # type: Any, list[Member]
        self._end: Callable[[], Any] | None = None

    def post(self, where: torch.device, post: Callable[[], Any]) -> Any:
        """Posts a message of a tensor on `where`, to start with the others if what carries it knows batches."""
        start_and_end = _batching(self.channel, where)
        if start_and_end is None:
            return post()
        if self._end is None:
            start_and_end[0]()
            self._end = start_and_end[1]
        post()
        self.members.append(Member())
        return self.members[-1]

    def end(self) -> None:
        """Starts them all."""
        if self._end is not None:
            work = self._end()
            for member in self.members:
                member.work = work


class Member:
    """One message of a batch: over when the batch is."""

    def __init__(self) -> None:
        self.work: Any = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        if self.work is None:
            raise ValueError(
                "a message of a batch starts when the batch ends: wait for it after the with block, not in it"
            )
        return self.work.wait(timeout) if timeout else self.work.wait()

    def is_completed(self) -> bool:
        return self.work is not None and self.work.is_completed()


def _batching(channel: Any, where: torch.device) -> tuple[Any, Any] | None:
    channel = getattr(channel, "wire", channel)  # a subgroup's messages travel in a group above it
    return batching(channel.gpu if device.is_gpu(where) else channel.host, where)


def in_order(channel: Any, where: torch.device) -> bool:
    """Whether messages of tensors on `where` start in the order of posting, but for those of a batch."""
    return _batching(channel, where) is not None


@contextmanager
def batch(channel: Any) -> Iterator[None]:
    """What this thread posts on the channel inside starts together when the block ends."""
    outer = getattr(_open, "batch", None)
    _open.batch = Batch(getattr(channel, "wire", channel))
    try:
        yield
    finally:
        ending, _open.batch = _open.batch, outer
        ending.end()


def posted(channel: Any, where: torch.device, post: Callable[[], Any]) -> Any:
    """What `post` has started; in a batch of this channel, a part of it."""
    current = getattr(_open, "batch", None)
    if current is None or current.channel is not channel:
        return post()
    return current.post(where, post)
