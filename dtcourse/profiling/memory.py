"""What a model holds right now: bytes of parameters, gradients, optimizer states, buffers, and of saved activations.

Bytes belong to storages, not to tensors: a view, a tied weight or a tensor that autograd saved three times is one
storage and counts once. `held` walks a model and its optimizer; `SavedTensors` sees what a forward pass keeps for its
backward, through PyTorch's saved_tensors_hooks. What is alive at every moment in between, and the peak, is
`dtcourse.profiling.memory_tracker`. The predictions that these are held against are `dtcourse.simulator.memory`.

Nothing here asks the device, so the counts are the same on a CPU and on a GPU; the GPU's allocator rounds each
storage up to 512 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

CATEGORIES = (
    "parameters",
    "gradients",
    "optimizer states",
    "buffers",
    "activations",
    "other",
)
"""Where bytes go. "other" is what a step needs for a moment: inputs, temporaries, gradients of activations."""


def storages(tensors: Iterable[Any]) -> dict[int, torch.UntypedStorage]:
    """The different storages under `tensors` (what is no tensor is passed over), by identity."""
    found = {}
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor):
            storage = local(tensor).untyped_storage()
            found[id(storage)] = storage
    return found


def storage_bytes(tensors: Iterable[Any]) -> int:
    """Bytes under `tensors`; a storage that several of them share counts once."""
    return sum(storage.nbytes() for storage in storages(tensors).values())


def tensors_of(state: Any) -> Iterator[torch.Tensor]:
    """Every tensor inside nested dicts, lists and tuples, such as an optimizer's state."""
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, dict):
        for value in state.values():
            yield from tensors_of(value)
    elif isinstance(state, (list, tuple, set)):
        for value in state:
            yield from tensors_of(value)


def held(
    model: nn.Module | Iterable[nn.Module], optimizer: torch.optim.Optimizer | None = None
) -> dict[str, int]:
    """Bytes that this process holds between two steps, by category.

    model: a module or several
    optimizer: its state counts, and so do parameters that it alone holds (master weights): as "optimizer states"
    returns: {"parameters": ..., "gradients": ..., "optimizer states": ..., "buffers": ...}
    """
    seen: set[int] = set()
    result = {}
    for category, tensors in held_tensors(model, optimizer).items():
        found = {k: s for k, s in storages(tensors).items() if k not in seen}
        seen |= found.keys()
        result[category] = sum(storage.nbytes() for storage in found.values())
    return result


def held_tensors(
    model: nn.Module | Iterable[nn.Module], optimizer: torch.optim.Optimizer | None = None
) -> dict[str, list[torch.Tensor]]:
    """The tensors behind `held`, by category. A tensor may be in two; the first one has it."""
    models = [model] if isinstance(model, nn.Module) else list(model)
    parameters: list[torch.Tensor] = [p for m in models for p in m.parameters()]
    buffers = [b for m in models for b in m.buffers()]
    state: list[torch.Tensor] = []
    if optimizer is not None:
        state = list(tensors_of(dict(optimizer.state)))
        state += [p for group in optimizer.param_groups for p in group["params"]]
    return {
        "parameters": parameters,
        "gradients": [p.grad for p in [*parameters, *state] if p.grad is not None],
        "optimizer states": state,
        "buffers": buffers,
    }


@dataclass(frozen=True)
class Saved:
    """One storage that the forward pass keeps for the backward pass."""

    bytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    times: int  # how many operations saved it


class SavedTensors(torch.autograd.graph.saved_tensors_hooks):
    """Counts what autograd saves: `with SavedTensors(model) as saved: loss = ...`, then `saved.bytes`.

    A storage counts once, however many operations save it or a view of it. What would be there anyway does not
    count: parameters and buffers of `model`, and `inputs` (the batch). So `bytes` is what the activations cost.
    Tensors that a checkpointed region keeps are hidden from these hooks; MemoryTracker sees them.
    """

    def __init__(self, model: nn.Module | None = None, inputs: Iterable[torch.Tensor] = ()) -> None:
        known = [] if model is None else [*model.parameters(), *model.buffers()]
        self._known = storages([*known, *inputs])
        self._first: dict[int, torch.Tensor] = {}  # kept alive, so that no identity is used again
        self._times: dict[int, int] = {}
        super().__init__(self.pack, lambda tensor: tensor)

    def __enter__(self) -> SavedTensors:  # type: ignore[override]  # torch's returns nothing
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.rows = [
            Saved(t.untyped_storage().nbytes(), tuple(t.shape), t.dtype, self._times[key])
            for key, t in self._first.items()
        ]
        self._first.clear()  # from here on the backward pass frees them, as always

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Notes the storage of a tensor that autograd saves, and hands the tensor back; backward uses that."""
        key = id(tensor.untyped_storage())
        if key not in self._known:
            self._first.setdefault(key, tensor.detach())
            self._times[key] = self._times.get(key, 0) + 1
        return tensor

    @property
    def bytes(self) -> int:
        """Bytes saved for the backward pass, each storage once. Known when the block has ended."""
        return sum(row.bytes for row in self.rows)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part, where `tensor` is a DTensor (fully_shard's parameters are)."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
