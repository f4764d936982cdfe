"""What carries a group's messages: gloo, or NCCL where each rank has a GPU of its own.

Tensors on a GPU that ranks share travel over gloo through host memory. Such a message costs two copies more: from the
GPU before it is sent, to the GPU after it has come. The copies run on the current stream and are waited for, so that
gloo never reads what is not there yet.

On NCCL a message has to wait for those that were posted before it on its stream, and a send is over when it has been
received; and it has no tags. Unbatched sends and receives of two ranks share a stream, in both directions; where the
group was given its device at once, as launch gives it, those of all its ranks do. So two ranks that each post a receive
and then a send wait for each other for ever, and so do two that send first. Posted in one batch, they are one operation
to NCCL, and start together:

    with p2p.batch(group):                 # as dist.batch_isend_irecv does
        works = [p2p.irecv(y, left, group), p2p.isend(x, right, group)]
    for work in works:
        work.wait()

Both ends of a message post it in a batch, or neither does. On gloo every message is on its way when it is posted, and a
batch changes nothing. The algorithms post what has to be under way at once in one batch; all of them are run in NCCL's
order by tests/collectives/test_nccl_order.py, on a CPU.

unverified: what is said of GPUs was written without one. tests/collectives/test_transport.py has tests marked gpu, to
be run where there is one; the copies through host memory are tested with host tensors in place of GPU ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from dtcourse import device
from dtcourse.torch_private import batching


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the bytes in memory, in order, are the values: no gaps, and no conjugation or sign still to apply."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def check_message(tensor: torch.Tensor, rank: int) -> None:
    """ValueError unless the tensor's memory is the message: dense, here, contiguous, its bytes the values."""
    if tensor.layout != torch.strided:
        raise ValueError(
            f"rank {rank}: a message must be dense, got layout {tensor.layout}; call .to_dense() first"
        )
    if not tensor.is_cpu and tensor.device.type != device.available():
        raise ValueError(
            f"rank {rank}: a message is on cpu or {device.available()}, got a tensor on {tensor.device}"
        )
    if not tensor.is_contiguous():
        raise ValueError(
            f"rank {rank}: a message must be contiguous, got shape {tuple(tensor.shape)} "
            f"with strides {tensor.stride()}; call .contiguous() first"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError(
            f"rank {rank}: a message must hold its values, and this tensor is a view that conjugates or negates "
            "them; call .resolve_conj().resolve_neg() first"
        )


class _Here(threading.local):
    batch: Batch | None = None  # that the calling thread has open


_here = _Here()


class Transport:
    """Posts messages of one group.

    host: carries tensors in host memory: a ProcessGroup or a backend, whose send and recv are called
    gpu:  carries tensors on GPUs; None: these travel through host memory
    """

    def __init__(self, host: Any, gpu: Any = None) -> None:
        self.host, self.gpu = host, gpu
        self._batching: dict[str, tuple[Any, Any] | None] = {}  # by kind of device

    def post(self, kind: str, tensor: torch.Tensor, peer: int | None, tag: int) -> Any:
        """Starts a "send" or "recv" of a tensor, and returns what to wait for. peer: None receives from anybody."""
        batch = _here.batch
        batched = batch is not None and batch.transport is self and batch.takes(tensor.device)
        if not tensor.is_cpu and device.is_gpu(tensor.device):
            started = self.post_from_gpu(kind, tensor, peer, tag)
        elif kind == "send":
            started = self.host.send([tensor], peer, tag)
        elif peer is None:
            started = self.host.recv_anysource([tensor], tag)
        else:
            started = self.host.recv([tensor], peer, tag)
        return batch.member() if batched and batch is not None else started

    def post_from_gpu(self, kind: str, tensor: torch.Tensor, peer: int | None, tag: int) -> Any:
        """The same for a tensor on a GPU."""
        if self.gpu is not None:
            if peer is None:
                raise ValueError(
                    "NCCL cannot receive from any source: name the sending rank with src="
                )
            return getattr(self.gpu, kind)([tensor], peer, tag)
        if kind == "send":
            copy = tensor.detach().to("cpu", copy=True)  # returns when the copy is complete
            return Staged(self.host.send([copy], peer, tag), copy, None)
        buffer = torch.empty(tensor.shape, dtype=tensor.dtype)
        if peer is None:
            return Staged(self.host.recv_anysource([buffer], tag), buffer, tensor)
        return Staged(self.host.recv([buffer], peer, tag), buffer, tensor)

    def batching(self, where: torch.device) -> tuple[Any, Any] | None:
        """How a batch of tensors on `where` is started and ended; None where each message starts by itself."""
        if where.type not in self._batching:
            carrier = self.gpu if device.is_gpu(where) else self.host
            self._batching[where.type] = batching(carrier, where)
        return self._batching[where.type]


class Staged:
    """A message in host memory, on its way from or to a GPU."""

    def __init__(self, posted: Any, buffer: torch.Tensor, target: torch.Tensor | None) -> None:
        self._posted, self._buffer, self._target = posted, buffer, target

    def wait(self, timeout: timedelta | None = None) -> bool:
        self._posted.wait(timeout) if timeout else self._posted.wait()
        if self._target is not None:
            with torch.no_grad():
                self._target.copy_(self._buffer)
            self._target = None
        return True

    def is_completed(self) -> bool:
        return self._target is None and self._posted.is_completed()

    def source_rank(self) -> int:
        return self._posted.source_rank()

    _source_rank = source_rank  # torch has both names


class Batch:
    """A context manager: what this thread posts on a transport inside starts together when the block ends."""

    def __init__(self, transport: Transport) -> None:
        self.transport, self.members = transport, []  # type: Transport, list[Member]
        self._end: Callable[[], Any] | None = None

    def __enter__(self) -> None:
        self._outer, _here.batch = _here.batch, self

    def __exit__(self, *_: object) -> None:
        _here.batch = self._outer
        if self._end is not None:
            work = self._end()
            for member in self.members:
                member.work = work

    def takes(self, where: torch.device) -> bool:
        """Whether a message of a tensor on `where` starts with the others; the first one begins the batch."""
        start_and_end = self.transport.batching(where)
        if start_and_end is not None and self._end is None:
            start_and_end[0]()
            self._end = start_and_end[1]
        return start_and_end is not None

    def member(self) -> Member:
        """The handle of a message that has been posted."""
        self.members.append(Member())
        return self.members[-1]


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
