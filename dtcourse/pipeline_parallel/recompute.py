"""A forward that is run twice: the second time finds what the first one found, and leaves nothing behind.

What a forward depends on besides its input and the weights are random numbers (dropout) and buffers that it changes
itself (BatchNorm's running statistics, a count of calls). Run once more as it is, as torch.utils.checkpoint does, it
draws the right random numbers and counts every micro-batch twice in the running statistics.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from dtcourse import device
from dtcourse.emulation.counting import repeating


class Before(NamedTuple):
    """What a forward has found: the state of the random numbers, and copies of the buffers that it changes."""

    random: Any
    buffers: dict[str, torch.Tensor]


class Recompute:
    """Of one stage."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.changing: set[str] | None = (
            None  # names of the buffers that a forward changes, once there has been one
        )

    def begin(self) -> Before:
        """To be called before a forward that is to be run once more."""
        copies = {
            name: buffer.clone()
            for name, buffer in self._buffers()
            if self.changing is None or name in self.changing
        }
        return Before(device.random_state(), copies)

    def end(self, before: Before) -> None:
        """To be called after it: what it has not changed need not be kept."""
        if self.changing is None:
            now = dict(self._buffers())
            same = {name for name, one in before.buffers.items() if torch.equal(one, now[name])}
            self.changing = now.keys() - same
            for name in same:
                del before.buffers[name]

    @contextmanager
    def again(self, before: Before) -> Iterator[None]:
        """The second time. Afterwards random numbers and buffers are what they were before it.

        It gets tensors of its own as buffers, since its backward may need them as they are. What it computes is counted
        as recomputed.
        """
        random = device.random_state()
        now = {name: one for name, one in self._buffers() if name in before.buffers}
        copies = {id(now[name]): copy for name, copy in before.buffers.items()}
        device.set_random_state(before.random)
        self._set({name: copies[id(one)] for name, one in now.items()})
        try:
            with repeating():
                yield
        finally:
            self._set(now)
            device.set_random_state(random)

    def _buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self.module.named_buffers(remove_duplicate=False)

    def _set(self, buffers: dict[str, torch.Tensor]) -> None:
        for name, buffer in buffers.items():
            place, _, leaf = name.rpartition(".")
            setattr(self.module.get_submodule(place), leaf, buffer)
