"""One rank's end of a group: where its messages go out and come in. `p2p` is the way to use it.

    isend, irecv    check the tensor, and agree on a tag
    transport.post  hands the message to gloo or NCCL (transport.py)
    wait            returns when it has left or come (arrivals.py)

Round that come those who hear of a message: a guard (guard.py), the emulated network, the counters, the timeline
(observers.py, message.py) and the flight recorder. Which of them there are is asked when one comes or goes.

A message carries no header that says what it is, so the two ends agree on that beforehand, in its tag: a number made of
the sender's tag, the number of elements, the dtype and the operation that it belongs to. gloo delivers a message only
to a receive with the same number, so ten floats never land in a buffer for twelve, nor a broadcast's in an all_reduce:
where ranks disagree they wait, and guard.py finds out why. (gloo itself ends the process when a message is longer than
its buffer, and says nothing when it is shorter. NCCL has no tags: there, such mistakes stay the user's.)
"""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Sequence
from typing import Any

import torch

from dtcourse import events
from dtcourse.collectives import mesh_axes
from dtcourse.collectives.flight import recorder
from dtcourse.collectives.traffic import here
from dtcourse.collectives.wire import observers
from dtcourse.collectives.wire.arrivals import Pending, Posted
from dtcourse.collectives.wire.guard import Guard
from dtcourse.collectives.wire.message import Message
from dtcourse.collectives.wire.transport import Batch, Transport, check_message


class Channel:
    """Sends and receives for one group on one rank.

    host:  what carries tensors in host memory: a ProcessGroup or a backend, whose send and recv are called
    gpu:   what carries tensors on GPUs, or None: then they travel through host memory
    guard: turns broken connections into reports; None for torch's own groups
    group: whose messages these are, where the host does not know it
    carries_notes: whether its host takes tensors of the CPU, as the notes beside messages on an emulated network are
    axis:  of the mesh that the group belongs to; empty where it belongs to none
    """

    def __init__(
        self,
        host: Any,
        rank: int,
        global_ranks: Sequence[int],
        gpu: Any = None,
        guard: Guard | None = None,
        group: Any = None,
        carries_notes: bool = True,
    ) -> None:
        self.transport, self.guard = Transport(host, gpu), guard
        self.carries_notes = carries_notes
        # Not held: the group has this channel.
        self._group = weakref.ref(host if group is None else group)
        self.rank, self.size = rank, len(global_ranks)
        self.global_ranks = tuple(global_ranks)
        self._asked = -1  # events.changes when it was last asked who hears of messages

    def isend(self, tensor: torch.Tensor, dst: int, tag: int = 0) -> Pending:
        """Starts sending to a group rank."""
        check_message(tensor, self.rank)
        return self.start("send", tensor, dst, tag)

    def irecv(self, tensor: torch.Tensor, src: int | None, tag: int = 0) -> Pending:
        """Starts receiving from a group rank; src=None: from whoever sends first."""
        check_message(tensor, self.rank)
        return self.start("recv", tensor, src, tag)

    def batch(self) -> Batch:
        """What this thread posts inside starts together when the block ends."""
        return Batch(self.transport)

    def start(
        self, kind: str, tensor: torch.Tensor, peer: int | None, tag: int, wire: int | None = None
    ) -> Pending:
        """Starts a "send" or a "recv".

        wire: the tag that the message has on its way. For torch's own groups, where a message may come into a larger
              tensor, or into one of another dtype, it is the sender's alone
        """
        if self._asked != events.changes:
            self._ask()
        if self.recorded and not here.quiet:
            return recorder.message(
                f"i{kind}", self.group, tensor, peer, tag,
                lambda: self.start(kind, tensor, peer, tag, wire),
            )  # fmt: skip
        if self.guard is not None and self.guard.failure is not None:
            raise self.guard.failure
        # gloo does not look: a rank that there is not ends the process.
        if peer is not None and (not 0 <= peer < self.size or peer == self.rank):
            raise ValueError(
                f"{'dst' if kind == 'send' else 'src'}={peer} on rank {self.rank} of a group of {self.size}: "
                f"it must be another rank of the group, 0 to {self.size - 1}"
            )
        if wire is None:
            salt = 0 if here.label is None else here.label.salt
            words = f"{tag} {salt} {tensor.numel()} {tensor.dtype}"
            wire = zlib.crc32(words.encode()) & 0x3FFFFFFF
        if self.guard is None and not self.observers:
            return Posted(self.transport.post(kind, tensor, peer, wire))
        return Message(self, kind, tensor, peer, tag).post(wire)

    def _ask(self) -> None:
        """Who hears of messages from here on, and under which axis of a mesh."""
        changes = events.changes
        self.observers = observers.of_messages()
        self.recorded = recorder.of_process() is not None
        self.axis = mesh_axes.axis_of(self.group)
        self._asked = changes

    def post(self, kind: str, tensor: torch.Tensor, peer: int | None, wire: int) -> Any:
        """Hands a message to what carries it. A connection that is already closed raises as one that breaks later."""
        try:
            return self.transport.post(kind, tensor, peer, wire)
        except RuntimeError as error:
            raise self.explain(error, peer, kind) from None

    def explain(self, error: BaseException, peer: int | None, what: str) -> BaseException:
        """What to raise for a connection to a peer that broke in an operation."""
        return error if self.guard is None else self.guard.lost(error, peer, what)

    @property
    def group(self) -> Any:
        """What these messages are of; None once it is gone."""
        return self._group()
