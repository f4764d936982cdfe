"""Buckets: many gradients in one flat tensor, so that one message carries them all.

A bucket is sent when its last gradient is ready, so gradients that become ready together belong together. Before the
first backward the best guess is the reverse of the order in which the parameters were made; afterwards the true order
is known and the buckets are built again. The first bucket is small: the network should start early.

Each gradient is a view into its bucket: copied in once, reduced in place, read by the optimizer where it lies.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

FIRST_BYTES = 1 << 20  # PyTorch's own sizes, so that the two can be compared
BYTES = 25 << 20


class Bucket:
    """Some parameters, and one flat tensor that holds all their gradients one after another.

    The methods without underscore are those of torch.distributed.GradBucket, so PyTorch's communication hooks, and
    those written for it, run on it unchanged.
    """

    def __init__(self, index: int, parameters: Sequence[nn.Parameter], is_last: bool) -> None:
        self._index, self._parameters, self._is_last = index, list(parameters), is_last
        first = self._parameters[0]
        total = sum(p.numel() for p in self._parameters)
        self._buffer = torch.zeros(total, dtype=first.dtype, device=first.device)
        self._views: list[torch.Tensor] = []
        offset = 0
        for parameter in self._parameters:
            part = self._buffer[offset : offset + parameter.numel()]
            self._views.append(part.view(parameter.shape))
            offset += parameter.numel()

    def index(self) -> int:
        """Its place in the order of sending."""
        return self._index

    def buffer(self) -> torch.Tensor:
        """The flat tensor of all gradients: shape (elements,)."""
        return self._buffer

    def set_buffer(self, tensor: torch.Tensor) -> None:
        """Takes other values for the gradients; the views stay where they are."""
        self._buffer.copy_(tensor.view_as(self._buffer))

    def gradients(self) -> list[torch.Tensor]:
        """Views of the buffer, each in its parameter's shape."""
        return self._views

    def parameters(self) -> list[nn.Parameter]:
        """The parameters whose gradients it holds, in order."""
        return self._parameters

    def is_last(self) -> bool:
        """Whether it is the last to be sent in a step."""
        return self._is_last


def assign(
    parameters: Sequence[nn.Parameter], first_bytes: int = FIRST_BYTES, bytes_each: int = BYTES
) -> list[Bucket]:
    """Buckets for `parameters`, which are given in the order in which their gradients become ready.

    A bucket holds one dtype on one device. It is closed when it has reached its size, so a parameter larger than a
    bucket gets one of its own.
    """
    open_lists: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
    closed: list[list[nn.Parameter]] = []
    limit = min(first_bytes, bytes_each)
    for parameter in parameters:
        key = (parameter.dtype, parameter.device)
        members = open_lists.setdefault(key, [])
        members.append(parameter)
        if sum(p.numel() * p.element_size() for p in members) >= limit:
            closed.append(open_lists.pop(key))
            limit = bytes_each
    closed += open_lists.values()
    return [Bucket(i, members, i == len(closed) - 1) for i, members in enumerate(closed)]
