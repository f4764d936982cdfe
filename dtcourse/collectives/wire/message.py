"""A message under way that somebody hears of: a guard, a counter, the timeline, an emulated network.

One that nobody hears of is an arrivals.Posted, with nothing between its caller and torch.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch

from dtcourse import events
from dtcourse.collectives import traffic
from dtcourse.collectives.traffic import Label, here
from dtcourse.collectives.wire.arrivals import Pending
from dtcourse.emulation.network import Ports


class Message(Pending):
    """A message of a channel. To make one sends nothing: `post` does.

    kind:  "send" or "recv";  peer: a group rank; None until it is known who sends
    tag:   the sender's;  wire: the number that goes over the network in its place (channel.py)
    label: the operation that it belongs to;  begun: when it was posted
    works: what has to be over before it is
    ports: of an emulated network, or None;  note: what travels beside it there
    values: what it carries, where it is small and recorded;  counters: those who count it
    """

    wire, begun = 0, 0.0
    label: Label
    observers: tuple[Any, ...] = ()  # of observers.Observer
    ports: Ports | None = None
    note: torch.Tensor
    values: Any = None
    counters: tuple[traffic.Counter, ...] = ()

    def __init__(
        self, channel: Any, kind: str, tensor: torch.Tensor, peer: int | None, tag: int
    ) -> None:
        super().__init__()
        self.channel, self.kind, self.tensor, self.peer, self.tag = channel, kind, tensor, peer, tag
        self.works: list[Any] = []

    def post(self, wire: int) -> Message:
        """Starts it, and tells those who hear of the channel's messages now."""
        self.wire, self.observers, self.begun = wire, self.channel.observers, events.now()
        label = here.label
        for observer in self.observers:
            observer.begins(self)
        self.works.append(self.channel.post(self.kind, self.tensor, self.peer, wire))
        if label is None:
            label = Label(self.kind, traffic.current_phase())
            traffic.called(label)
        self.label = label
        for observer in self.observers:
            observer.posted(self)
        return self

    def come(self, timeout: timedelta | None) -> None:
        # Part of a collective: the whole of it is under guard.
        guard = None if self.label.salt else self.channel.guard
        if guard is not None:
            guard.begin(*self._place(guard), peer=self.peer)
        try:
            for work in self.works:
                work.wait(timeout) if timeout else work.wait()
            if self.peer is None:
                self.peer = self.works[0].source_rank()
            for observer in self.observers:
                observer.over(self)
        except RuntimeError as error:
            what = f"{self.kind} in {self.label.operation}" if self.label.salt else self.kind
            raise self.channel.explain(error, self.peer, what) from None
        finally:
            if guard is not None:
                guard.end()

    def _place(self, guard: Any) -> tuple[str, str]:
        """Where, and for what, this end waits: the other end's words must be the same."""
        peer = "any rank" if self.peer is None else guard.name(self.peer)
        me = guard.name(self.channel.rank)
        src, dst = (me, peer) if self.kind == "send" else (peer, me)
        dtype = str(self.tensor.dtype).removeprefix("torch.")
        return (
            f"a message from {src} to {dst} with tag {self.tag}",
            f"{self.tensor.numel()} {dtype}",
        )

    def wait(self, timeout: timedelta | None = None) -> bool:
        if self.waited:
            return super().wait()  # which raises what it raised before
        since = events.now()
        super().wait(timeout)
        for observer in self.observers:
            observer.waited(self, since)
        return True

    def is_completed(self) -> bool:
        if not self.waited:
            if not (self.number or self.works[0].is_completed()):
                return False
            self.settle()  # over, and nobody may ever wait for it: NCCL says so by itself
            if events.now() < self.due:
                return False
        for observer in self.observers:
            observer.found(self)
        return True

    def is_completed_here(self) -> bool:
        return self.works[0].is_completed()

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor that it is sent from or received into."""
        return self.tensor.numel() * self.tensor.element_size()

    @property
    def peer_everywhere(self) -> int:
        """Its peer's rank in the default group."""
        assert self.peer is not None
        return self.channel.global_ranks[self.peer]

    def source_rank(self) -> int:
        """The group rank that a message came from (dist.recv with src=None asks for it)."""
        assert self.peer is not None
        return self.peer

    _source_rank = source_rank  # torch has both names
