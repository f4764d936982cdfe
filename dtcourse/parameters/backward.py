"""A backward pass as a wrapper sees it: where it begins, when all of it is over, and what it has brought so far.

Hooks on parameters tell of gradients one at a time, and none of them knows that it was the last. The autograd engine
calls back when a pass is over. But a reentrant activation checkpoint runs a pass of its own inside the outer one, and
what is asked for in there is called when that one ends, with half the gradients still to come. The outer pass comes by
what forward returned before anything else: so that is where the end is asked for (torch_private.after_backward).
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from dtcourse import nested
from dtcourse.torch_private import base_of, gradient_hooks


@dataclass
class BackwardPass:
    """What one backward has brought so far.

    pending:   by bucket, the gradients that it still waits for
    unused:    parameters to which this backward brings nothing, as far as that is known
    arrivals:  how many gradients a parameter has got, parameters in the order of their last one
    ready:     parameters whose gradient is in its bucket
    next:      the bucket to send next: the same order on every rank, whatever is ready first here
    under_way: buckets that have been sent, and what to wait for
    end_awaited: the engine will call when backward is over
    """

    pending: list[int]
    unused: set[torch.Tensor] = field(default_factory=set)
    arrivals: dict[torch.Tensor, int] = field(default_factory=dict)
    ready: set[torch.Tensor] = field(default_factory=set)
    next: int = 0
    under_way: deque[tuple[Any, Any]] = field(default_factory=deque)
    end_awaited: bool = False


def on_backward(output: Any, call: Callable[[], None]) -> None:
    """Has `call` called whenever a backward comes to one of the tensors in what a forward returned."""
    found = nested.tensors(output)
    # A view that is changed in place gets another history, without its hook; that of its base goes on.
    bases = [base for base in map(base_of, found) if base is not None]
    for tensor in {id(t): t for t in (*found, *bases)}.values():
        if tensor.grad_fn is not None:  # a hook on a leaf, say a parameter, would stay for ever
            tensor.register_hook(lambda gradient: call())


def on_gradient(parameter: torch.Tensor, method: Callable[..., None]) -> None:
    """Has a wrapper's `method` called when a gradient has been added to parameter.grad,
    for as long as the wrapper lives.
    """
    hook = weakly(method)
    hook.of = weakref.ref(method.__self__)  # type: ignore[attr-defined]
    parameter.register_post_accumulate_grad_hook(hook)


def averaged_by(parameter: torch.Tensor) -> list[Any]:
    """The Reducers, of wrappers that are alive, that wait for a parameter's gradient."""
    waiting = [hook.of() for hook in gradient_hooks(parameter) if hasattr(hook, "of")]
    return [one for one in waiting if one is not None]


def check_only_wrapper(wrapper: object, names: Mapping[Any, str]) -> None:
    """Raises ValueError if another wrapper that is alive waits for the gradient of one of the same parameters."""
    for parameter, name in names.items():
        if any(other is not wrapper for other in averaged_by(parameter)):
            raise ValueError(
                f"{name} has another wrapper already, and its gradient would be averaged twice. Modules that share a "
                "parameter need one wrapper round both of them; for a new one, let go of the old one first (del model)"
            )


def weakly(method: Callable[..., None]) -> Callable[..., None]:
    """`method` for as long as its object lives, then nothing: for hooks on parameters, which outlive a wrapper."""
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> None:
        alive = reference()
        if alive is not None:
            alive(*args)

    return call


def check_same_parameters(module: nn.Module, wrapped: Collection[torch.Tensor]) -> None:
    """Raises ValueError if the module trains a parameter that is not among those that were `wrapped`."""
    if all(p in wrapped for p in module.parameters() if p.requires_grad):
        return
    names = [name for name, p in module.named_parameters() if p.requires_grad and p not in wrapped]
    raise ValueError(
        f"{', '.join(names)}: frozen when the module was wrapped, or "
        "another tensor since then (replaced, or loaded with assign=True). Its gradient would stay this rank's own: "
        "wrap the module again"
    )


def check_gradient(gradient: torch.Tensor | None, name: str) -> None:
    """Raises ValueError for a gradient that cannot be averaged as one of many in a flat tensor."""
    assert gradient is not None, "hooks on gradients run when they are there"
    if gradient.layout != torch.strided:
        raise ValueError(
            f"{name} has a sparse gradient, and gradients travel together in dense tensors: build the embedding with "
            "sparse=False"
        )
    if gradient.requires_grad:
        raise ValueError(
            f"{name} has a gradient with a graph of its own, from backward(create_graph=True). Averaging is no part of "
            "that graph, so derivatives of it would be this rank's alone: for a gradient inside the loss (a gradient "
            "penalty) use torch.autograd.grad(..., create_graph=True), and then backward() without it"
        )
