"""Buckets: many gradients in one flat tensor, so that one message carries them all.

A bucket is sent when its last gradient is ready, so gradients that become ready together belong together. Before the
first backward the best guess is the reverse of the order in which the parameters were made; afterwards the true order
is known and the buckets are built again. The first bucket is small: the network should start early.

Each gradient has a view into its bucket: copied in once, reduced in place, and read where it lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

FIRST_BYTES = 1 << 20  # PyTorch's own sizes, so that the two can be compared
BYTES = 25 << 20


class Bucket:
    """Some parameters, and one flat tensor that holds all their gradients one after another.

    parameters: of one dtype, on one device;  owner: the rank of the group that it goes to, where it goes to one alone

    The tensor has memory from its first use to `release`. The first six methods are those of
    torch.distributed.GradBucket, so PyTorch's communication hooks, and those written for it, run on it unchanged.
    """

    def __init__(
        self, index: int, parameters: Sequence[torch.Tensor], is_last: bool, owner: int = 0
    ) -> None:
        self._index, self._parameters, self._is_last = index, list(parameters), is_last
        self.owner = owner
        self.elements = sum(p.numel() for p in parameters)
        self.nbytes = sum(p.numel() * p.element_size() for p in parameters)
        self._buffer: torch.Tensor | None = None
        self._views: list[torch.Tensor] = []

    def index(self) -> int:
        """Its place in the order of sending."""
        return self._index

    def buffer(self) -> torch.Tensor:
        """The flat tensor of all gradients: shape (elements,)."""
        if self._buffer is None:
            self._buffer = self.empty()
            self._views = self.views(self._buffer)
        return self._buffer

    def set_buffer(self, tensor: torch.Tensor) -> None:
        """Takes other values for the gradients; the views stay where they are."""
        self.buffer().copy_(tensor.view_as(self.buffer()))

    def gradients(self) -> list[torch.Tensor]:
        """Views of the buffer, each in its parameter's shape."""
        self.buffer()
        return self._views

    def parameters(self) -> list[Any]:
        """The parameters whose gradients it holds, in order."""
        return self._parameters

    def is_last(self) -> bool:
        """Whether it is the last to be sent in a step."""
        return self._is_last

    def release(self) -> None:
        """Lets go of the memory: what still views it keeps it, and the next use has other memory."""
        self._buffer, self._views = None, []

    def empty(self) -> torch.Tensor:
        """Room for as many numbers: a flat tensor, shape (elements,)."""
        first = self._parameters[0]
        return torch.empty(self.elements, dtype=first.dtype, device=first.device)

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The parts of such a flat tensor, each in its parameter's shape."""
        parts = flat.split([p.numel() for p in self._parameters])
        return [part.view(p.shape) for part, p in zip(parts, self._parameters, strict=True)]


def assign(
    parameters: Sequence[torch.Tensor], first_bytes: int = FIRST_BYTES, bytes_each: int = BYTES
) -> list[Bucket]:
    """Buckets for `parameters`, which are given in the order in which their gradients become ready.

    A bucket holds one dtype on one device. It is closed when it has reached its size, so a parameter larger than a
    bucket gets one of its own.
    """
    closed = divided(parameters, first_bytes, bytes_each)
    buckets = [Bucket(i, members, i == len(closed) - 1) for i, members in enumerate(closed)]
    for bucket in buckets:
        bucket.buffer()  # now: no backward waits for its memory
    return buckets


def divided(
    tensors: Sequence[torch.Tensor], first_bytes: int = BYTES, bytes_each: int = BYTES
) -> list[list[torch.Tensor]]:
    """What each bucket would hold, without memory for it: in order, those of one dtype and device."""
    open_lists: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    closed: list[list[torch.Tensor]] = []
    limit = min(first_bytes, bytes_each)
    for tensor in tensors:
        key = (tensor.dtype, tensor.device)
        members = open_lists.setdefault(key, [])
        members.append(tensor)
        if sum(t.numel() * t.element_size() for t in members) >= limit:
            closed.append(open_lists.pop(key))
            limit = bytes_each
    return [*closed, *open_lists.values()]
