"""The methods by which torch calls a group: what each is called in counts and events, and how large a call of it is.

For groups that see a call from outside: instrumented.py's, whose inner group does it, and virtual.py's, where nobody
does.
"""

from __future__ import annotations

from typing import Any

import torch

# torch's method, and what it is called in counts and events. Its first argument is where the result will be.
METHODS = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather",
    "all_gather_single": "all_gather",
    "all_gather_single_coalesced": "all_gather",
    "_allgather_base": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "gather": "gather",
    "scatter": "scatter",
    "alltoall": "all_to_all",
    "all_to_all_single": "all_to_all",
    "alltoall_base": "all_to_all",
    "barrier": "barrier",
}


def tensors_in(value: Any) -> list[torch.Tensor]:
    """All tensors in nested lists."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for item in value for t in tensors_in(item)]
    return []


def bytes_of(name: str, args: tuple[Any, ...], ranks: int) -> int:
    """The size in bytes of a call of the collective `name`, as traffic.algorithmic_bytes defines it."""

    def nbytes(value: Any) -> int:
        return sum(t.numel() * t.element_size() for t in tensors_in(value))

    if name == "barrier":
        return 0
    if name in ("all_reduce", "broadcast", "reduce"):
        return nbytes(args[0])
    if name == "gather":
        return nbytes(args[1]) * ranks
    if name == "scatter":
        return nbytes(args[0]) * ranks
    return nbytes(args[0]) if name == "all_gather" else nbytes(args[1])
