"""What "combined" means in reduce, reduce-scatter and all-reduce: torch's ReduceOp on two tensors.

An algorithm combines pairs, in an order that only the ranks and sizes decide. So a sum has the same bits in each run;
another algorithm adds in another order, and its floating-point sum may differ in the last bits.

    reduction = reduction_of(ReduceOp.SUM, tensor, ranks)
    reduction.start(mine)                      # once, on what this rank contributes (PREMUL_SUM multiplies here)
    reduction.combine(a, b, out=a)             # as often as there are pairs
    reduction.finish(result)                   # once, on the rank that holds the result (AVG divides here)

AVG is the sum, divided once at the end: one rounding, not one a step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.distributed import ReduceOp

from dtcourse import torch_private

Combine = Callable[..., torch.Tensor]

_COMBINE: dict[str, Combine] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PREMUL_SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


@dataclass(frozen=True)
class Reduction:
    """One ReduceOp, for one dtype and number of ranks.

    combine(a, b, out=c) writes a op b; a comes from the ranks that are earlier in the algorithm's order.
    """

    name: str
    combine: Combine
    ranks: int
    factor: float | torch.Tensor | None = None

    def start(self, tensor: torch.Tensor) -> None:
        """Multiplies this rank's contribution in place for PREMUL_SUM; nothing to do for all others."""
        if self.factor is not None:
            tensor.mul_(self.factor)

    def finish(self, tensor: torch.Tensor) -> None:
        """Divides in place for AVG; call it on each element once, before the result is handed on."""
        if self.name == "AVG":
            tensor.div_(self.ranks)


@functools.cache
def _exists(name: str, dtype: torch.dtype, kind: str) -> bool:
    """Whether torch has the operation for a dtype on a kind of device; several of the rarer dtypes only carry data."""
    one = torch.zeros(1, dtype=dtype, device=kind)
    try:
        _COMBINE[name](one, one, out=one)
    except (NotImplementedError, RuntimeError):
        return False
    return True


def name_of(op: ReduceOp | ReduceOp.RedOpType) -> str:
    """The operation's name: "SUM", "AVG", ..."""
    kind = getattr(op, "op", op)  # a ReduceOp holds a RedOpType; torch's functions take either
    name = getattr(kind, "name", None)
    if name not in _COMBINE:
        raise ValueError(f"op={op!r} is no ReduceOp; one of {', '.join(_COMBINE)} is needed")
    return name


def reduction_of(op: ReduceOp | ReduceOp.RedOpType, tensor: torch.Tensor, ranks: int) -> Reduction:
    """The Reduction for `op` over tensors like this one. ValueError where the dtype has no such operation."""
    name, dtype = name_of(op), tensor.dtype
    exact = not (dtype.is_floating_point or dtype.is_complex)  # integers and bool
    if name in ("AVG", "PREMUL_SUM") and exact:
        raise ValueError(
            f"{name} of {dtype} tensors has no exact result: use SUM and divide yourself, or a floating-point dtype"
        )
    if name in ("BAND", "BOR", "BXOR") and not exact:
        raise ValueError(
            f"{name} is for integers and bool, got {dtype}: bits of a {dtype} mean nothing by themselves"
        )
    if name in ("MIN", "MAX") and dtype.is_complex:
        raise ValueError(f"{name} of {dtype} is not defined: complex numbers have no order")
    if not _exists(name, dtype, tensor.device.type):
        raise ValueError(
            f"PyTorch does not compute {name} of {dtype} on {tensor.device.type}: use a wider dtype"
        )
    factor = torch_private.factor_of(op) if name == "PREMUL_SUM" else None
    if name == "PREMUL_SUM" and factor is None:
        raise ValueError(
            "PREMUL_SUM needs its factor: make the op with torch's _make_nccl_premul_sum(factor)"
        )
    return Reduction(name, _COMBINE[name], ranks, factor)
