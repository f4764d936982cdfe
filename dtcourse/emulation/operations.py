"""What an operation of torch costs: its floating-point operations, and the bytes that it reads and writes.

FLOPs are those of matrix products, convolutions and attention, as torch's own FlopCounterMode counts them; its table
leaves some out, which are added here. Everything else (element by element, reductions, copies, optimizers) is bound by
memory on any processor, so its bytes decide.

Bytes are those of each tensor that goes in, once, and of each that comes out, once; what an operation changes in place
is read and written. So an operation costs what it would cost with caches that hold nothing from one operation to the
next: an upper bound, as the roofline model has it. A view moves nothing, nor does memory that is only set aside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from dtcourse import torch_private
from dtcourse.torch_private import packet_of, schema_of, sparse_parts

aten = torch.ops.aten

# Namespaces whose operations are no work of the device: messages (the network's business), and notes of the profiler.
FREE_NAMESPACES = frozenset(
    {"c10d", "_c10d_functional", "_dtensor", "profiler", "prim", "symm_mem"}
)
# Memory set aside or let go, and questions about tensors.
FREE = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_", "lift_fresh",
     "record_stream", "is_pinned", "_pin_memory", "_has_compatible_shallow_copy_type",
     "is_same_size", "_version", "_is_zerotensor"}
)  # fmt: skip
# In place, but what was there before is not read.
OVERWRITES = frozenset(
    {"copy_", "_foreach_copy_", "fill_", "zero_", "_foreach_zero_", "normal_", "uniform_", "bernoulli_", "random_",
     "exponential_", "geometric_", "cauchy_", "log_normal_"}
)  # fmt: skip
# They read as much of their first tensor as they give out, not all of it.
PICKS = frozenset({"embedding", "index_select", "index", "gather", "take", "_unsafe_index"})


def has_formula(func: Any) -> bool:
    """Whether the operation's FLOPs are counted by a formula of its own."""
    return packet_of(func) in _FLOPS or packet_of(func) in flop_registry


def flops(func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> int:
    """Floating-point operations of one call; 0 for what is bound by memory anyway."""
    formula = _FLOPS.get(packet_of(func))
    if formula is not None:
        return formula(*args)
    formula = flop_registry.get(packet_of(func))
    return 0 if formula is None else int(formula(*args, **kwargs, out_val=result))


def bytes_moved(func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> int:
    """Bytes read from and written to memory by one call."""
    name, schema = packet_of(func).__name__, schema_of(func)
    if func.namespace in FREE_NAMESPACES or name in FREE or _is_view(schema):
        return 0
    if name == "_local_scalar_dense":
        return args[0].element_size()
    read = written = 0
    for place, argument in enumerate(schema.arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        nbytes = sum(map(stored_bytes, tensors(value)))
        changed = argument.alias_info is not None and argument.alias_info.is_write
        if argument.name == "grads" and kwargs.get("grad_scale") is None:
            changed = False  # fused optimizers change gradients only to undo a loss scale
        if changed:
            written += nbytes
        if not changed or not (name in OVERWRITES or argument.kwarg_only):  # kwarg_only: out=
            read += nbytes
    fresh = sum(
        stored_bytes(tensor)
        for returned, value in zip(schema.returns, _returned(schema, result), strict=False)
        if returned.alias_info is None
        for tensor in tensors(value)
    )
    if name in PICKS:
        read += fresh - stored_bytes(args[0])
    return read + written + fresh


def _is_view(schema: Any) -> bool:
    """Whether all that comes out shares memory with what went in, and nothing is changed."""
    aliases = [returned.alias_info for returned in schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


def _returned(schema: Any, result: Any) -> Sequence[Any]:
    return result if len(schema.returns) > 1 and isinstance(result, tuple | list) else (result,)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in an argument: itself, or those of a list of them."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)


def stored_bytes(tensor: torch.Tensor) -> int:
    """Bytes of memory behind a tensor: an expanded dimension is stored once,
    a sparse tensor is its values and indices.
    """
    if tensor.layout is not torch.strided:
        parts = sparse_parts(tensor)
        return sum(map(stored_bytes, parts))
    elements = math.prod(
        size
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        if stride or not size
    )
    return elements * tensor.element_size()


# --- what torch's table leaves out -----------------------------------------------------------------------------


def _product(a: torch.Tensor, b: torch.Tensor) -> int:
    """Matrix (or vector) a by matrix (or vector) b: a multiplication and an addition each."""
    return 2 * a.numel() * (b.shape[-1] if b.dim() > 1 else 1)


def _batched_product(a: torch.Tensor, b: torch.Tensor) -> int:
    return 2 * a.numel() * b.shape[-1]


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any) -> int:
    """Scores and their product with the values: 2 S d per query each. The mask saves nothing, as in torch's table."""
    queries = math.prod(query.shape[:-1])
    return 2 * queries * key.shape[-2] * (query.shape[-1] + value.shape[-1])


def _attention_backward(
    gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any
) -> int:
    """Five products, as torch counts for its other kernels: the scores again, and the gradients of what made them."""
    queries, length = math.prod(query.shape[:-1]), key.shape[-2]
    return 2 * queries * length * (3 * query.shape[-1] + 2 * value.shape[-1])


_FLOPS: dict[Any, Callable[..., int]] = {
    aten.mv: _product,
    aten.dot: _product,
    aten.vdot: _product,
    aten.addmv: lambda bias, matrix, vector, *_: _product(matrix, vector),
    aten.addmv_: lambda bias, matrix, vector, *_: _product(matrix, vector),
    aten.addmm_: lambda bias, a, b, *_: _product(a, b),
    torch_private.ADDMM_ACTIVATION: lambda bias, a, b, *_: _product(a, b),
    aten.addr: lambda bias, a, b, *_: 2 * a.numel() * b.numel(),
    aten.baddbmm_: lambda bias, a, b, *_: _batched_product(a, b),
    aten.addbmm: lambda bias, a, b, *_: _batched_product(a, b),
    aten.addbmm_: lambda bias, a, b, *_: _batched_product(a, b),
    torch_private.FLASH_ATTENTION_ON_CPU: _attention,
    torch_private.FLASH_ATTENTION_ON_CPU_BACKWARD: _attention_backward,
}
