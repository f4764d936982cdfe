"""One rank's end of a group: where its messages go out and come in. `p2p` is the way to use it.

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
from datetime import timedelta
from typing import Any

import torch

from dtcourse import device, events
from dtcourse.collectives import mesh_axes, traffic
from dtcourse.collectives.traffic import Label
from dtcourse.collectives.wire import batch, device_transport
from dtcourse.collectives.wire.arrivals import Pending, Posted
from dtcourse.collectives.wire.guard import Guard
from dtcourse.emulation import clock
from dtcourse.emulation.network import Ports

PICTURED = 64  # elements up to which a recorded message keeps its values, for pictures (profiling/replay.py)
_HEADER = 0x48  # goes into the tag of the note that precedes a message on an emulated network


class Channel:
    """Sends and receives for one group on one rank.

    host:  what carries tensors in host memory: a ProcessGroup or a backend, whose send and recv are called
    gpu:   what carries tensors on GPUs, or None: then they travel through host memory
    guard: turns broken connections into reports; None for torch's own groups
    group: whose messages these are, where the host does not know it
    """

    def __init__(
        self,
        host: Any,
        rank: int,
        global_ranks: Sequence[int],
        gpu: Any = None,
        guard: Guard | None = None,
        group: Any = None,
    ) -> None:
        self.host, self.gpu, self.guard = host, gpu, guard
        # Not held: the group has this channel.
        self._group = weakref.ref(host if group is None else group)
        self.rank, self.size = rank, len(global_ranks)
        self.global_ranks = tuple(global_ranks)

    def isend(self, tensor: torch.Tensor, dst: int, tag: int = 0) -> Any:
        return self._start("send", tensor, dst, tag)

    def irecv(self, tensor: torch.Tensor, src: int | None, tag: int = 0) -> Any:
        """src=None receives from whoever sends first."""
        return self._start("recv", tensor, src, tag)

    def pass_on(self, kind: str, tensor: torch.Tensor, peer: int | None, tag: int) -> Any:
        """A "send" or "recv" as the host would do it alone: its tag, and nothing else, says which receive it is for.

        For torch's own groups, where a message may come into a larger tensor, or into one of another dtype.
        """
        return self._start(kind, tensor, peer, tag, wire=tag)

    def _start(
        self, kind: str, tensor: torch.Tensor, peer: int | None, tag: int, wire: int | None = None
    ) -> Any:
        if self.guard is not None and self.guard.failure is not None:
            raise self.guard.failure
        # gloo does not look: a rank that there is not ends the process.
        if peer is not None and (not 0 <= peer < self.size or peer == self.rank):
            raise ValueError(
                f"{'dst' if kind == 'send' else 'src'}={peer} on rank {self.rank} of a group of {self.size}: "
                f"it must be another rank of the group, 0 to {self.size - 1}"
            )
        begun = events.now()
        label = traffic.in_operation()
        salt = label.salt if label is not None else 0
        if wire is None:
            words = f"{tag} {salt} {tensor.numel()} {tensor.dtype}"
            wire = zlib.crc32(words.encode()) & 0x3FFFFFFF
        emulated = clock.installed()
        ports = None if emulated is None else emulated.ports()
        if emulated is not None and not emulated.arrival_decides and peer is None:
            raise ValueError(
                "a receive from any rank takes what arrives first, and the virtual clock does not know what that is: "
                'launch(..., clock="wall")'
            )
        counted = traffic.active()
        started = batch.posted(self, tensor.device, lambda: self._post(kind, tensor, peer, wire))
        if self.guard is None and ports is None and not counted and not events.recording():
            return Posted(started)  # torch's own Work: nothing in between
        if label is None:
            label = Label(kind, traffic.current_phase())
            traffic.called(label)
        return Message(self, kind, tensor, peer, tag, wire, label, started, ports, begun)

    def _post(self, kind: str, tensor: torch.Tensor, peer: int | None, wire: int) -> Any:
        try:
            if device.is_gpu(tensor.device):
                return device_transport.start(kind, tensor, peer, wire, self.host, self.gpu)
            if kind == "send":
                return self.host.send([tensor], peer, wire)
            if peer is None:
                return self.host.recv_anysource([tensor], wire)
            return self.host.recv([tensor], peer, wire)
        except RuntimeError as error:  # a connection that is already closed
            raise self.explain(error, peer, kind) from None

    def explain(self, error: BaseException, peer: int | None, what: str) -> BaseException:
        return error if self.guard is None else self.guard.lost(error, peer, what)

    @property
    def group(self) -> Any:
        """What these messages are of; None once it is gone."""
        return self._group()

    @property
    def axis(self) -> str:
        """Of the mesh that the group belongs to; empty where it belongs to none."""
        return mesh_axes.axis_of(self.group)

    def global_rank(self, peer: int | None) -> int:
        """The default group's number of a group rank."""
        assert peer is not None
        return self.global_ranks[peer]


class Message(Pending):
    """A message under way. A send is counted when it is posted; a receive when it has come, since it may never."""

    def __init__(
        self,
        channel: Channel,
        kind: str,
        tensor: torch.Tensor,
        peer: int | None,
        tag: int,
        wire: int,
        label: Label,
        started: Any,
        ports: Ports | None,
        begun: float,
    ) -> None:
        super().__init__()
        self._channel, self._kind, self._tensor = channel, kind, tensor
        self._peer, self._tag, self._label, self._started = peer, tag, label, started
        self._ports = ports
        self._begun = begun
        # What a send carries is what the tensor holds now: it may change as soon as the message has left.
        small = kind == "send" and tensor.numel() <= PICTURED and events.recording()
        self._values = tensor.tolist() if small else None
        nbytes = tensor.numel() * tensor.element_size()
        if kind == "send":
            traffic.sent(label, channel.global_rank(peer), nbytes, channel.axis)
        if ports is not None:
            # A note travels beside the message: when its head arrives, and how long it is, since it may be shorter than
            # where it is received. The note belongs to the emulation: it is not counted, nor is what makes it.
            note = torch.empty(2, dtype=torch.float64)
            noted = hash((_HEADER, wire)) & 0x3FFFFFFF
            if kind == "send":
                self.due, head = ports.send(nbytes, channel.global_rank(peer), begun)
                note.numpy()[:] = head, nbytes
                self._note_started = channel._post("send", note, peer, noted)
            elif peer is not None:
                self._note_started = channel._post("recv", note, peer, noted)
            else:
                self._note_started = None  # posted in wait(), when it is known who sends
            self._note, self._noted = note, noted

    def wait(self, timeout: timedelta | None = None) -> bool:
        if self.waited:
            return super().wait()  # which raises what it raised before
        since = events.now()
        super().wait(timeout)
        if self._ports is not None:
            clock.wait_until(self.due, since)
        events.add(
            self._kind,
            "communication",
            self._begun,
            self._ended(),
            bytes=self._nbytes,
            lane="messages",
            detail=self._detail() | {"since": since},
        )
        return True

    def _ended(self) -> float:
        """When the message had left or arrived: now, or before now where nobody waited for it at once."""
        return events.now() if self._ports is None else max(self._begun, self.due)

    def come(self, timeout: timedelta | None) -> None:
        guard = self._channel.guard
        if self._label.salt:
            guard = None  # part of a collective: the whole of it is under guard
        if guard is not None:
            guard.begin(*self._place(), peer=self._peer)
        try:
            self._come(timeout)
        except RuntimeError as error:
            what = f"{self._kind} in {self._label.operation}" if self._label.salt else self._kind
            raise self._channel.explain(error, self._peer, what) from None
        finally:
            if guard is not None:
                guard.end()

    def _come(self, timeout: timedelta | None) -> None:
        for work in (self._started, getattr(self, "_note_started", None)):
            if work is not None:
                work.wait(timeout) if timeout else work.wait()
        if self._kind == "send":
            return
        if self._peer is None:
            self._peer = self._started.source_rank()
        src = self._channel.global_rank(self._peer)
        traffic.received(self._label, src, self._nbytes, self._channel.axis)
        if self._ports is None:
            return
        if self._note_started is None:
            self._channel._post("recv", self._note, self._peer, self._noted).wait()
        head, nbytes = self._note.numpy()
        self.due = self._ports.receive(int(nbytes), src, float(head))

    @property
    def _nbytes(self) -> int:
        return self._tensor.numel() * self._tensor.element_size()

    def _place(self) -> tuple[str, str]:
        """Where, and for what, this end waits: the other end's words must be the same."""
        channel, guard = self._channel, self._channel.guard
        assert guard is not None
        peer = "any rank" if self._peer is None else guard.name(self._peer)
        me = guard.name(channel.rank)
        src, dst = (me, peer) if self._kind == "send" else (peer, me)
        dtype = str(self._tensor.dtype).removeprefix("torch.")
        return (
            f"a message from {src} to {dst} with tag {self._tag}",
            f"{self._tensor.numel()} {dtype}",
        )

    def _detail(self) -> dict[str, Any]:
        """For pictures: which part of which operation this was. The offset is in elements of the tensor's storage."""
        assert self._peer is not None
        return {
            "operation": self._label.operation,
            "phase": self._label.phase,
            "peer": self._channel.global_rank(self._peer),
            "tag": self._tag,
            "offset": self._tensor.storage_offset(),
            "elements": self._tensor.numel(),
            **({} if self._values is None else {"values": self._values}),
            **mesh_axes.detail(self._channel.group),
        }

    def is_completed(self) -> bool:
        over = bool(self.number) or self._started.is_completed()
        return self.waited or (over and events.now() >= self.due)

    def is_completed_here(self) -> bool:
        return self._started.is_completed()

    def source_rank(self) -> int:
        """The group rank that a message came from (dist.recv with src=None asks for it)."""
        assert self._peer is not None
        return self._peer

    _source_rank = source_rank  # torch has both names
