"""Half-precision overflow, named: which module's output, or whose gradient, was the first that is not finite.

    with raise_on_overflow(model):
        loss = criterion(model(x), y)
        loss.backward()

float16 ends at 65504. A sum, a square or a matrix product of a few thousand numbers of size 10 is past it; what comes
out is infinity, and NaN where two infinities meet, and from there on everything is NaN: the loss says nothing of where
it began. Hooks look at every module's output in forward, and at the gradient that reaches it in backward, and stop
at the first. bfloat16 has float32's range (to 3e38), so there it is division by zero or a logarithm that one finds.

For looking, not for training: each look waits for the device. Source of the ranges: Micikevicius et al., arXiv
1710.03740, section 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dtcourse import nested
from dtcourse.plural import plural


@contextmanager
def raise_on_overflow(model: nn.Module) -> Iterator[None]:
    """Raises OverflowError at the first module whose output, or whose output's gradient, is not finite.

    Modules end inside out, so the module that is named did it itself, or in what it computes between its parts.
    """
    handles = [
        module.register_forward_hook(_look(name or "the model"), with_kwargs=True)
        for name, module in model.named_modules()
    ]
    watching = [True]  # gradients' hooks live in the graph, which may outlive the context
    for name, module in model.named_modules():
        handles.append(module.register_forward_hook(_watch(name or "the model", watching)))
    try:
        yield
    finally:
        watching.clear()
        for handle in handles:
            handle.remove()


def _look(name: str) -> Any:
    def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        for result in _floats(output):
            if result.isfinite().all():
                continue
            inputs = _floats((args, kwargs))
            if any(not t.isfinite().all() for t in inputs):
                raise OverflowError(
                    f"the input of {name} is not finite already: it comes from outside the model, or from what its "
                    "parent computes between modules"
                )
            largest = max([t.abs().max().item() for t in inputs if t.numel()], default=0.0)
            weights = [p for p in module.parameters(recurse=False) if not p.isfinite().all()]
            why = (
                "its own parameters are not finite (an earlier step has updated them with an infinity)"
                if weights
                else f"its inputs are finite, up to {largest:.4g}"
            )
            raise OverflowError(
                f"{name} ({type(module).__name__}) puts out {_share(result)} in {_type(result)}, which ends at "
                f"{torch.finfo(result.dtype).max:.4g}; {why}. Let it run in float32 or bfloat16, or make its inputs "
                "smaller."
            )

    return hook


def _watch(name: str, watching: list[bool]) -> Any:
    def gradient_hook(gradient: torch.Tensor) -> None:
        if watching and not gradient.isfinite().all():
            raise OverflowError(
                f"the gradient that reaches the output of {name} is {_share(gradient)} in {_type(gradient)}, which "
                f"ends at {torch.finfo(gradient.dtype).max:.4g}: what uses this output overflows in backward. A "
                "smaller loss scale helps if the loss is scaled."
            )

    def hook(module: nn.Module, args: Any, output: Any) -> None:
        for result in _floats(output):
            if result.requires_grad:
                result.register_hook(gradient_hook)

    return hook


def _floats(value: Any) -> list[torch.Tensor]:
    return [t for t in nested.tensors(value) if t.is_floating_point() and t.numel()]


def _share(tensor: torch.Tensor) -> str:
    nan, inf = int(tensor.isnan().sum()), int(tensor.isinf().sum())
    parts = [f"{n} {what}" for n, what in ((inf, "infinities"), (nan, "NaN")) if n]
    return f"{' and '.join(parts)} among {plural(tensor.numel(), 'value')}"


def _type(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
