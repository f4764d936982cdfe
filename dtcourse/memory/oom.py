"""Out of memory: what the error says, and how a step survives it by halving the micro-batch.

    step = train_step_with_halving(model, loss_function, optimizer, inputs, targets, micro_batch=64, group=group)

Activations grow with the micro-batch, everything else does not. A batch cut into micro-batches gives the same
gradient, if each part's mean loss counts by its share of the samples. So a step that runs out of memory is begun
again from nothing, with micro-batches half as large, until it fits or one sample is too much.

Over ranks: all must take the same way, or some wait in a collective for a rank that is not coming. So no attempt sends
anything. After each, the ranks agree on the largest micro-batch that everyone may try next (one all-reduce of 8 bytes);
once all have succeeded with the same one, gradients are averaged, in one message per parameter. What that costs is the
overlap of gradients with backward. The parts are gradient accumulation (as in Huang et al., GPipe, arXiv 1811.06965).
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtcourse import device, events
from dtcourse.parameters.agreement import smallest
from dtcourse.parameters.replicas import average_gradients
from dtcourse.plural import plural
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


@dataclass(frozen=True)
class HalvedStep:
    """What a step came to.

    loss:        mean over this rank's samples
    micro_batch: what it fitted with; pass it on to the next step
    attempts:    1 where nothing ran out of memory
    """

    loss: float
    micro_batch: int
    attempts: int


def train_step_with_halving(
    model: nn.Module,
    loss_function: Callable[[Any, torch.Tensor], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    *,
    micro_batch: int | None = None,
    group: dist.ProcessGroup | None = None,
) -> HalvedStep:
    """One training step on this rank's samples that halves the micro-batch until it fits.

    model:           plain, or wrapped in DDP: its own averaging is left out (no_sync), averages are taken here
    loss_function:   (output, targets) -> mean over the samples
    inputs, targets: samples first, the same number
    micro_batch:     samples of the first attempt; None: all of them
    group:           ranks whose gradients are averaged, each rank's mean with the same weight, as DDP has it

    Gradients are set, not added to. Batch statistics and random state are put back before another attempt; with batch
    normalisation or dropout, other micro-batches give other (as good) gradients. Raises torch.OutOfMemoryError on every
    rank if one sample is too much on one of them; then nothing has been updated.
    """
    samples = len(inputs)
    size = samples if micro_batch is None else min(micro_batch, samples)
    if len(targets) != samples or size < 1:
        raise ValueError(
            "inputs and targets are the same samples, at least one, in micro-batches of at least one; got "
            f"{plural(samples, 'input')}, {plural(len(targets), 'target')}, micro_batch={micro_batch}"
        )
    # a data-parallel wrapper's, so that attempts send nothing
    local: Any = getattr(model, "no_sync", None)
    if local is not None and group is None:
        group = getattr(model, "process_group", None)
    before = device.random_state(), [b.detach().clone() for b in model.buffers()]
    attempts, again = 0, True
    while True:
        if again:
            for parameter in model.parameters():
                parameter.grad = None
            with nullcontext() if local is None else local():
                loss, failure = _attempt(model, loss_function, inputs, targets, size)
            attempts += 1
        # Also a rank that has succeeded asks again, until all have.
        limit = _NO_LIMIT if failure is None else size // 2
        if group is not None:
            limit = smallest(limit, group, device.current())
        if limit == _NO_LIMIT:
            break
        again = limit < size
        if again:
            # Here, not where the error was caught: the error holds the frames, and the frames hold the tensors.
            _clean_up(model, *before)
        if limit == 0:
            whose = failure or "another rank of the group ran out of memory"
            raise torch.OutOfMemoryError(f"one sample at a time is still too much: {whose}")
        size = min(size, limit)
    if group is not None:
        average_gradients(model, group)
    optimizer.step()
    return HalvedStep(loss, size, attempts)


_NO_LIMIT = 2**62  # what a rank says that needs no smaller micro-batch


def _attempt(
    model: nn.Module,
    loss_function: Callable[..., torch.Tensor],
    inputs: torch.Tensor,
    targets: torch.Tensor,
    size: int,
) -> tuple[float, str | None]:
    """Forward and backward of all micro-batches: the mean loss, or the text of an out-of-memory error."""
    try:
        total = torch.zeros((), device=inputs.device)
        for x, y in zip(inputs.split(size), targets.split(size), strict=True):
            # Its share, not 1 / micro-batches: the last one may be smaller.
            loss = loss_function(model(x), y) * (len(x) / len(inputs))
            loss.backward()
            total += loss.detach()
        return total.item(), None
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        events.instant("out of memory", "memory", detail={"micro_batch": size})
        return float("nan"), str(error)


def _clean_up(model: nn.Module, random_state: Any, buffers: list[torch.Tensor]) -> None:
    """As before the attempt, with everything it held given back."""
    for parameter in model.parameters():
        parameter.grad = None
    with torch.no_grad():
        for buffer, before in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(before)
    device.set_random_state(random_state)
    gc.collect()  # what only a reference cycle holds
    device.empty_cache()


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
