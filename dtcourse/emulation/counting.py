"""The mode of torch that sees each operation of a rank, lets it compute, and moves the rank's clock by its cost.

A TorchDispatchMode sees operations below autograd: what forward really runs, and on a CPU also what backward runs, on
the same thread. So recomputation, hooks and optimizers are seen as they happen. Entered before anything else in the
rank, it lies below every other mode, and sees what those make of an operation.

Not counted: what a group's worker adds up on its own lane (in a cluster the network card or a few of the device's cores
do that beside the computation; `clock.computing` counts what else a thread beside the main one computes), and tensors
without memory, by which PyTorch itself works out shapes (fake, meta). A DTensor's operation is seen when it has become
one on this rank's shard.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from dtcourse import torch_private
from dtcourse.emulation import operations
from dtcourse.emulation.clock import Clock, Lane
from dtcourse.emulation.device import EmulatedDevice
from dtcourse.torch_private import TorchDispatchMode

_here = threading.local()


@contextmanager
def repeating() -> Iterator[None]:
    """A context: what the calling thread computes inside is a forward that it has computed before."""
    before = getattr(_here, "repeating", False)
    _here.repeating = True
    try:
        yield
    finally:
        _here.repeating = before


def repeated() -> bool:
    """Whether what runs now was computed before: inside of `repeating`, or by a checkpoint.

    Only what a checkpoint repeats runs inside a backward with gradients enabled.
    """
    in_checkpoint = torch.is_grad_enabled() and torch_private.in_backward()
    return in_checkpoint or getattr(_here, "repeating", False)


class EachOperation(TorchDispatchMode):
    """What sees each operation that its thread runs, as one on plain tensors: a subclass says what `ran` does with it.

    Also for what only counts (dtcourse.profiling.operators), at whatever depth of modes it is entered.

    sees_fakes: whether fake tensors are what is computed with (a traced rank's), and not PyTorch's own on shapes
    """

    sees_fakes = False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch_private.DEVICE_OF:
            return func(*args)
        made_of_others = [kind for kind in types if not torch_private.is_plain(kind)]
        if any(map(torch_private.is_fake, made_of_others)):
            return self.ran(func, args, kwargs) if self.sees_fakes else func(*args, **kwargs)
        if made_of_others:  # a DTensor, say: it comes back with the tensors that it is made of
            return NotImplemented
        if not operations.has_formula(func):
            with self:
                # In inference mode what autograd would have taken apart (linear) arrives whole.
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        return self.ran(func, args, kwargs)

    def ran(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Runs one operation, and returns what came out."""
        raise NotImplementedError


class CountOperations(EachOperation):
    """Every operation inside takes the time that it would take on `device`, on that lane of the clock."""

    def __init__(self, device: EmulatedDevice, clock: Clock, lane: Lane) -> None:
        super().__init__()
        self._device, self._clock, self._lane = device, clock, lane

    def ran(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if self._clock.lane() is self._lane and not without_memory(args, kwargs, result):
            work = operations.flops(func, args, kwargs, result)
            moved = operations.bytes_moved(func, args, kwargs, result)
            seconds = self._device.seconds(work, moved)
            self._lane.flops += work
            self._lane.moved += moved
            if repeated():
                self._lane.recomputed += seconds
            self._clock.compute(seconds)
        return result


def without_memory(*values: Any) -> bool:
    """Whether tensors are meta or fake: shapes only."""
    for value in values:
        parts = list(value.values()) if isinstance(value, dict) else value
        for tensor in operations.tensors(parts):
            if tensor.is_meta or not torch_private.is_plain(type(tensor)):
                return True
    return False
