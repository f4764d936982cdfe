"""Autocast by hand: parameters stay float32, and each operation runs in the type that suits it.

    with autocast(torch.bfloat16):        # torch.autocast("cpu", dtype=torch.bfloat16)
        loss = criterion(model(x), y)
    loss.backward()                       # float32 gradients, for any optimizer

Matrix products gain most from 16 bits and lose least, since they add up in float32: their inputs are cast down.
Losses and long products lose most: cast up. The rest takes what comes. A function mode sees every call above autograd
and puts in the casts, so backward casts each gradient back. Source: Micikevicius et al., arXiv 1710.03740, section
3.3; the lists are PyTorch's.

Memory: 4 bytes per parameter as before, and 2 for its cast copy until backward has used it (one copy, however often it
is used); half the bytes for what matrix products save and put out. The parameters are their own master weights;
float16 needs loss scaling all the same. No messages.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from dtcourse import device

# By name, so that torch.matmul, Tensor.matmul and x @ y are one.
LOWER = frozenset({
    "linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "addmm", "addbmm", "baddbmm", "einsum",
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "scaled_dot_product_attention",
})  # fmt: skip
FLOAT32 = frozenset({
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "cross_entropy", "nll_loss", "kl_div",
    "binary_cross_entropy_with_logits", "poisson_nll_loss", "cosine_embedding_loss", "hinge_embedding_loss",
    "margin_ranking_loss", "triplet_margin_loss", "prod", "quantile", "cdist",
})  # fmt: skip
# A CPU's kernels compute these in float32 inside and round what they put out; a GPU's inputs are cast up.
FLOAT32_ON_GPU = frozenset({
    "softmax", "log_softmax", "layer_norm", "group_norm", "softplus", "exp", "log", "pow", "__pow__", "sum",
    "cumsum", "cumprod", "norm", "rsqrt", "reciprocal",
})  # fmt: skip
WIDEST = frozenset({"cat", "concat", "stack", "hstack", "vstack"})  # tensors that must agree


class autocast(TorchFunctionMode):
    """Casts the inputs of operations while it is entered. The innermost one rules.

    dtype:   torch.bfloat16 or torch.float16
    enabled: False stops an outer autocast inside
    gpu:     with the list of a GPU; None: where this rank has one

    One limit that torch.autocast, inside the dispatcher, does not have: a function written in Python that is in no
    list (multi_head_attention_forward) is seen as one call, and runs as it is.
    """

    _entered = threading.local()  # .stack: the modes entered in this thread, innermost last

    def __init__(
        self, dtype: torch.dtype = torch.bfloat16, enabled: bool = True, gpu: bool | None = None
    ) -> None:
        super().__init__()
        if dtype not in (torch.bfloat16, torch.float16):
            raise ValueError(f"autocast lowers to torch.bfloat16 or torch.float16; got {dtype}")
        self.dtype, self.enabled = dtype, enabled
        self.gpu = device.is_gpu() if gpu is None else gpu
        self._copies: dict[tuple[torch.Tensor, bool], torch.Tensor] = {}

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        cast = self.cast_for(name, args) if self.enabled and self is innermost() else None
        if cast is not None:
            args, kwargs = _each_float(cast, args), _each_float(cast, kwargs)
        return function(*args, **kwargs)

    def cast_for(self, name: str, args: Any) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """How the operation of that name wants its inputs cast; None: it takes them as they are."""
        if name in LOWER:
            return self._lower
        if name in FLOAT32 or (self.gpu and name in FLOAT32_ON_GPU):
            return torch.Tensor.float
        if name in WIDEST and any(t.dtype == torch.float32 for t in args[0]):
            return torch.Tensor.float
        return None

    def _lower(self, tensor: torch.Tensor) -> torch.Tensor:
        """To 16 bits. A parameter's copy is made once, however many layers share it or micro-batches use it."""
        if tensor.dtype == self.dtype:
            return tensor
        if not (tensor.is_leaf and tensor.requires_grad):
            return tensor.to(self.dtype)
        key = (tensor, torch.is_grad_enabled())  # a copy made without gradients would give none
        if key not in self._copies:
            self._copies[key] = tensor.to(self.dtype)
        return self._copies[key]

    def __enter__(self) -> autocast:
        stack = self._entered.__dict__.setdefault("stack", [])
        stack.append(self)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._entered.stack.pop()
        self._copies.clear()  # the optimizer will change the parameters


def innermost() -> autocast | None:
    """The autocast that rules in this thread now."""
    stack = getattr(autocast._entered, "stack", [])
    return stack[-1] if stack else None


def as_now() -> Callable[[], AbstractContextManager[Any]]:
    """Makes contexts in which autocast is as it is now: what a recompute in backward needs."""
    now = innermost()
    if now is None:
        return lambda: autocast(enabled=False)
    return lambda: autocast(now.dtype, now.enabled, now.gpu)


def _each_float(cast: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """Casts every 16- or 32-bit floating tensor in arguments; float64 is somebody's choice and stays."""
    if isinstance(value, torch.Tensor):
        kinds = (torch.float32, torch.bfloat16, torch.float16)
        return cast(value) if value.dtype in kinds else value
    if isinstance(value, dict):
        return {name: _each_float(cast, part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [_each_float(cast, part) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    return value
