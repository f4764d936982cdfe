"""A backward in two halves: the gradient of the input now, the weights' when there is time.

    later = DelayedWeightGradients()
    with later:
        y = stage(x)
    torch.autograd.backward(y, dy)    # backward-input: x.grad is there, the weights' gradients are not
    later.compute()                   # backward-weight: now they are

For y = x W^T a backward computes dx = dy W and dW = dy^T x. They need nothing of each other, so they can run at
different times: the FLOPs of both halves are those of one backward. (Asking autograd.grad twice, once for the input and
once for the weights, walks the same graph twice and computes dx twice.) What the second half needs is kept: x and dy of
every linear layer. All else that the forward has stored is free after the first half.

The model stays as it is: while the forward runs, calls of `linear` are taken over (a TorchFunctionMode). Weights of
other layers (norms, embeddings, convolutions) get their gradients in the first half.

Source: Qi et al. 2023, Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from dtcourse.torch_private import saves_through_hooks


class DelayedWeightGradients(TorchFunctionMode):
    """Takes the weights' gradients of the linear layers called inside of it out of the backward,
    and computes them later.

    One for each micro-batch. Gradients of weights come to `.grad` as in any backward, hooks included, but in `compute`.
    Checkpointed layers keep their whole backward: it computes them again, from what it finds saved, where no mode
    reaches.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Callable[[], None]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.linear:
            x, weight, bias = _operands(*args, **kwargs)
            layer = _Layer(weight, bias)
            if layer.is_trained() and not saves_through_hooks():
                return layer.forward(x, self.waiting)
        return func(*args, **kwargs)

    def compute(self) -> None:
        """Backward-weight: the gradients that backward-input has left, added to `.grad`; what they needed is freed."""
        while self.waiting:
            self.waiting.pop(0)()


class _Layer:
    """One call of a linear layer."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def is_trained(self) -> bool:
        """Whether its weight is a parameter that this forward's backward brings a gradient."""
        return self.weight.requires_grad and self.weight.is_leaf and torch.is_grad_enabled()

    def forward(self, x: torch.Tensor, waiting: list[Callable[[], None]]) -> torch.Tensor:
        """Its output, whose backward puts `weight_gradients` on the list."""
        bias = self.bias
        # A bias that is computed from something else has to get its gradient at once.
        if computed := bias is not None and not bias.is_leaf:
            self.bias = None
        # The weight is no input of the graph: it would be told of a gradient, of none, in backward-input.
        anchor = torch.empty(0, requires_grad=True)  # y has a backward even where x has none
        late = None if self.bias is None else self.bias.detach()
        y = _Linear.apply(anchor, x, self.weight.detach(), late, self, waiting)
        return y + bias if computed else y

    def weight_gradients(self, x: torch.Tensor, dy: torch.Tensor) -> None:
        """Adds them to `.grad`, through autograd: the hooks of those who wait for them (DDP's Reducer) are called."""
        # All dims but the last are samples.
        x_NI, dy_NO = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
        with torch.no_grad():
            parameters, gradients = [self.weight], [dy_NO.T @ x_NI]
            if self.bias is not None and self.bias.requires_grad:
                parameters.append(self.bias)
                gradients.append(dy_NO.sum(0))
        # One call for both: a call costs as much as a small layer's gradient.
        torch.autograd.backward(
            parameters, [g.to(p.dtype) for g, p in zip(gradients, parameters, strict=True)]
        )


class _Linear(torch.autograd.Function):
    """linear, whose backward gives x its gradient and leaves a note for those of weight and bias."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> torch.Tensor:
        _, x, weight, bias, ctx.layer, ctx.waiting = arguments
        y = F.linear(x, weight, bias)
        # Under autocast it has computed in y's dtype, and so does backward.
        ctx.save_for_backward(x.to(y.dtype), weight)
        ctx.x_dtype = x.dtype
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (dy,) = grads
        x, weight = ctx.saved_tensors
        ctx.waiting.append(partial(ctx.layer.weight_gradients, x, dy))
        dx = (dy @ weight.to(dy.dtype)).to(ctx.x_dtype) if ctx.needs_input_grad[1] else None
        return None, dx, None, None, None, None


def _operands(
    input: torch.Tensor,  # noqa: A002 - F.linear's own name
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    return input, weight, bias


__all__ = ["DelayedWeightGradients"]
