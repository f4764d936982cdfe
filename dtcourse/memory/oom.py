"""Out of memory: which errors say so, what they mean in words, and a device with little memory, emulated."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from dtcourse.profiling.memory_tracker import MemoryTracker


def is_out_of_memory(error: BaseException) -> bool:
    """Whether it is: a GPU's allocator raises torch.OutOfMemoryError, a CPU's a RuntimeError like any other."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(
        error
    )


def explain(error: BaseException) -> str:
    """The error in words: how much was asked for, how much there is, and what to try, cheapest first.

    ValueError for an error that is not about memory.
    """
    if not is_out_of_memory(error):
        raise ValueError(f"this is no out-of-memory error: {type(error).__name__}: {error}")
    asked, total, free, reserved = _numbers(str(error))
    lines = ["Out of memory."]
    if asked is not None:
        where = "" if total is None else f" of a device that has {_amount(total)}"
        rest = "" if free is None else f"; {_amount(free)} were free"
        lines.append(f"The allocation that failed was {_amount(asked)}{where}{rest}.")
        if free is not None and asked <= free:
            lines.append("There was enough in sum, but not in one piece: memory is fragmented.")
    if asked is not None and reserved is not None and reserved > asked:
        lines.append(
            f"PyTorch held {_amount(reserved)} that no tensor used, in blocks too small: fragmentation. Set "
            "PYTORCH_ALLOC_CONF=expandable_segments:True, and keep shapes the same from step to step."
        )
    lines += [
        "If it happened in forward or backward, activations are too many. In this order:",
        "  1. a smaller micro-batch, with gradients accumulated (train_step_with_halving does it): costs nothing "
        "but speed",
        "  2. bfloat16 (autocast): about half the activations",
        "  3. checkpoint(block, x), or only the core of attention: one more forward",
        "  4. offload_activations(): as much as the link to host memory carries",
        "If it happened in the first optimizer.step, the optimizer's states are too many: shard them (ZeRO).",
        "If it happened while the model was built or moved, the parameters are: shard them (fully_shard), or load "
        "them layer by layer (OffloadedParameters).",
        "If memory grows from step to step, something holds the graph: a loss that is added up without .item().",
    ]
    return "\n".join(lines)


class MemoryLimit(MemoryTracker):
    """A device with little memory, emulated: raises torch.OutOfMemoryError where live tensors pass `limit` bytes.

    limit: bytes;  model, optimizer, inputs: what is there already and counts, see MemoryTracker

    Counts what operators put out, on any device, after the operator that passed the limit; a real allocator would
    have refused before it, and knows of memory inside operators too.
    """

    def __init__(
        self,
        limit: int,
        model: nn.Module | Iterable[nn.Module] = (),
        optimizer: torch.optim.Optimizer | None = None,
        inputs: Iterable[torch.Tensor] = (),
    ) -> None:
        if limit < 1:
            raise ValueError(f"the limit is a number of bytes above 0; got {limit}")
        super().__init__(model, optimizer, inputs)
        self.limit = limit
        self.peak_live = self._live = self._read = 0

    def __enter__(self) -> MemoryLimit:
        super().__enter__()
        return self

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        before = self.live
        result = super().__torch_dispatch__(func, types, args, kwargs)
        after = self.live
        if after > self.limit and after > before:
            raise torch.OutOfMemoryError(
                f"Emulated device out of memory. Tried to allocate {after - before} bytes for {func.name()}. "
                f"The device has a total capacity of {self.limit} bytes, of which {max(0, self.limit - before)} "
                "bytes is free."
            )
        return result

    @property
    def live(self) -> int:
        """Bytes that live now."""
        for change, *_ in self.history.events[self._read :]:
            self._live += change
            self.peak_live = max(self.peak_live, self._live)
        self._read = len(self.history.events)
        return self._live


_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_AMOUNT = r"([\d.]+) (bytes|KiB|MiB|GiB|TiB)"


def _numbers(text: str) -> list[int | None]:
    """Bytes asked for, of the whole device, free, and reserved by PyTorch without use: where the message says so."""
    patterns = [
        rf"tried to allocate {_AMOUNT}",
        rf"total capacity of {_AMOUNT}",
        rf"of which {_AMOUNT} is free",
        rf"{_AMOUNT} is reserved by PyTorch but unallocated",
    ]
    found = [re.search(pattern, text, re.IGNORECASE) for pattern in patterns]
    return [None if m is None else int(float(m[1]) * _UNITS[m[2]]) for m in found]


def _amount(count: int) -> str:
    unit = next((u for u in ("TiB", "GiB", "MiB", "KiB") if count >= _UNITS[u]), "bytes")
    return f"{count / _UNITS[unit]:.4g} {unit}"
