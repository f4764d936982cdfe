"""Work that a GPU does later: when it comes to it, and how to have it done beside other work.

A GPU is handed operations and returns at once; it does them in the order of a queue, a stream. So the host's clock says
when an operation was queued, and not when it ran, and what one thread queues waits for what others have queued on the
same stream. On a CPU an operation has ended when its call returns, and both classes here are next to nothing.

unverified: no GPU was at hand when this was written; the tests marked `gpu` are to be run on one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dtcourse import device, events
from dtcourse.torch_private import is_fake


def may_look(x: torch.Tensor) -> bool:
    """Whether a value of it can be read without waiting for what is queued on its device, and it has one."""
    return not (device.is_gpu(x.device) or is_fake(type(x)))


class Moment:
    """A moment of the computation on `where`: on a GPU when it comes to what is queued next, on a CPU now.

    Only `seconds_since` waits, and only until both moments have come: a step that is measured goes on.
    """

    def __init__(self, where: torch.device) -> None:
        self.time = events.now()
        self.event: torch.Event | None = None
        if device.is_gpu(where):
            self.event = torch.Event(where, enable_timing=True)
            self.event.record(torch.accelerator.current_stream(where))

    def seconds_since(self, earlier: Moment) -> float:
        """Seconds from `earlier`, of the same device, to this moment."""
        if self.event is None or earlier.event is None:
            return self.time - earlier.time
        self.event.synchronize()
        return earlier.event.elapsed_time(self.event) / 1e3

    def on_host(self, origin: Moment) -> float:
        """When it came, on the clock of events. origin: a moment at which nothing was queued."""
        return self.time if self.event is None else origin.time + self.seconds_since(origin)


class SecondStream:
    """A stream of a GPU beside the one that computes. Nothing on a CPU, where a thread runs beside others by itself."""

    def __init__(self, where: torch.device) -> None:
        self.stream = torch.Stream(where) if device.is_gpu(where) else None

    @contextmanager
    def after(self, moment: Moment) -> Iterator[None]:
        """Has what this thread queues inside run on this stream, after `moment`; at the end the host waits for it.

        Tensors of other streams that it reads must be kept by the caller until then.
        """
        if self.stream is None:
            yield
            return
        assert moment.event is not None, "the moment is of the same GPU"
        self.stream.wait_event(moment.event)
        with self.stream:
            yield
        self.stream.synchronize()
