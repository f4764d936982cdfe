"""What torch passes to a process group's methods, made plain; and a call in words, for the ranks to compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist


def single(tensors: Any) -> torch.Tensor:
    """Torch passes lists, from a time when one process had several GPUs; they hold one tensor."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"one tensor a rank, got {len(tensors)}")
    return tensors[0]


def single_list(lists: Any) -> list[torch.Tensor]:
    """The same, for lists of tensors."""
    if lists and isinstance(lists[0], torch.Tensor):
        return list(lists)
    if len(lists) != 1:
        raise ValueError(f"one list of tensors a rank, got {len(lists)}")
    return list(lists[0])


def reduce_op(opts: Any, more: dict[str, Any]) -> Any:
    """The ReduceOp, wherever the caller put it; the sum where it said nothing."""
    if "op" in more:
        return more["op"]
    if opts is None:
        return dist.ReduceOp.SUM
    return getattr(opts, "reduceOp", opts)


def with_root(opts: Any, more: dict[str, Any], kind: type) -> Any:
    """Options with a root: given as such, or as group.broadcast(tensor, root=1)."""
    if isinstance(opts, kind):
        return opts
    made = kind()
    made.rootRank = opts if isinstance(opts, int) else more.get("root", 0)
    if "op" in more:
        made.reduceOp = more["op"]
    return made


def elements(tensor: torch.Tensor, sizes: Sequence[int], ranks: int) -> list[int]:
    """Elements for each rank, where dim 0 is split into these sizes, or evenly."""
    if not sizes:
        return [tensor.numel() // ranks] * ranks
    row = tensor[:1].numel()
    return [size * row for size in sizes]


def words(*tensors: torch.Tensor) -> str:
    """What must agree between the ranks: numbers of elements, and the dtype."""
    if not tensors:
        return "nothing"
    if len(tensors) > 4:
        sizes = f"{len(tensors)} tensors, {sum(t.numel() for t in tensors)}"
    else:
        sizes = " + ".join(str(t.numel()) for t in tensors)
    return f"{sizes} {dtypes(*tensors)}"


def dtypes(*tensors: torch.Tensor) -> str:
    """The dtypes of some tensors: "float32", or "float32/int64"."""
    return "/".join(dict.fromkeys(str(t.dtype).removeprefix("torch.") for t in tensors))


def op_name(op: Any) -> str:
    """A ReduceOp's name: "sum"."""
    return str(getattr(op, "op", op)).rpartition(".")[2].lower()
