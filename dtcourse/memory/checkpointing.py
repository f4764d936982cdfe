"""Activation checkpointing by hand: forget what a region saved for backward, and compute it again when it is needed.

    y = checkpoint(block, x)                # torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
    y = checkpoint_sequential(layers, 4, x)

Autograd saves tensors in forward: a linear layer its input, dropout its mask. Here saved-tensor hooks put an empty
holder in the place of each, and only the region's inputs stay. The first holder that backward opens runs the function
once more, with the same random numbers, and the tensors it saves, in the same order, fill the holders; then it stops.
Source: Chen et al., Training Deep Nets with Sublinear Memory Cost (arXiv 1604.06174).

Memory: n equal layers in k regions hold k inputs and, at the worst moment, the activations of n / k layers: least at
k = sqrt(n), where it grows with sqrt(n). Compute: one more forward, a third more where backward costs two. No messages.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from dtcourse import device
from dtcourse.memory import autocasting
from dtcourse.memory.selective import CheckpointError, KeptOutputs, Policy
from dtcourse.plural import plural


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    preserve_rng_state: bool = True,
    policy: Policy | None = None,
    **kwargs: Any,
) -> Any:
    """Returns function(*args, **kwargs), without keeping what it saves for backward.

    function:           runs twice, so it must do the same both times; what it changes elsewhere changes twice
    preserve_rng_state: the second run draws the random numbers of the first (dropout)
    policy:             operations whose outputs are kept all the same; see selective.py

    Raises CheckpointError in backward if the second run saves other tensors (number, shape, type) than the first.
    """
    if not torch.is_grad_enabled():  # nothing is saved, so there is nothing to forget
        return function(*args, **kwargs)
    frame = _CheckpointFrame(function, args, kwargs, preserve_rng_state, policy)
    with saved_tensors_hooks(frame.pack, frame.unpack), frame.kept_in_forward():
        return function(*args, **kwargs)


def checkpoint_sequential(
    functions: nn.Sequential | Sequence[Callable[[Any], Any]],
    segments: int | None,
    input: Any,  # noqa: A002 -- PyTorch's name for it
    preserve_rng_state: bool = True,
    policy: Policy | None = None,
) -> Any:
    """Runs `functions` one after the other, in `segments` equal regions, as torch.utils.checkpoint does.

    segments: None takes the square-root rule. The last region is not checkpointed: backward starts with it, so what
    it would forget would be needed at once.
    """
    layers: list[Callable[[Any], Any]] = list(functions)  # type: ignore[arg-type]
    if segments is None:
        segments = square_root_segments(len(layers))
    if not 1 <= segments <= len(layers):
        raise ValueError(
            f"{plural(len(layers), 'layer')} can be 1 to {plural(len(layers), 'segment')}; got {segments}"
        )
    size, value = len(layers) // segments, input
    for start in range(0, size * (segments - 1), size):
        value = checkpoint(
            _chained(layers[start : start + size]),
            value,
            preserve_rng_state=preserve_rng_state,
            policy=policy,
        )
    return _chained(layers[size * (segments - 1) :])(value)


def square_root_segments(layers: int) -> int:
    """How many regions cost the least memory: k inputs plus layers / k activations is least at k = sqrt(layers)."""
    if layers < 1:
        raise ValueError(f"there is at least one layer; got {layers}")
    return max(1, round(math.sqrt(layers)))


class _Holder:
    """Stands in the graph for a tensor that was not kept; holds it between the recompute and its use."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self) -> None:
        self.tensor: torch.Tensor | None = None


class _StopRecomputationError(BaseException):
    """Ends the recompute: all that backward may ask for is there. No `except Exception` of the function stops it."""


class _CheckpointFrame:
    """One call of a checkpointed function: its inputs, and a note of each tensor that it saved.

    It lives as long as the graph, which holds its hooks; the graph's holders are known here weakly.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        preserve_rng_state: bool,
        policy: Policy | None,
    ) -> None:
        self._function = function
        self._inputs = _saved_inputs(args, kwargs)
        self._random_state = device.random_state() if preserve_rng_state else None
        self._autocast = _autocast_contexts()
        self._kept_outputs = None if policy is None else KeptOutputs(policy)
        self._holders: list[weakref.ref[_Holder]] = []
        self._saved: list[tuple[Any, ...]] = []  # what each was: shape, type, device

    def kept_in_forward(self) -> Any:
        return nullcontext() if self._kept_outputs is None else self._kept_outputs.recording()

    # --- the two hooks ----------------------------------------------------------------------------------------

    def pack(self, tensor: torch.Tensor) -> _Holder:
        """Autograd wants to save `tensor`: it gets an empty holder."""
        holder = _Holder()
        self._holders.append(weakref.ref(holder))
        self._saved.append(_description(tensor))
        return holder

    def unpack(self, holder: _Holder) -> torch.Tensor:
        """Backward wants the tensor back. It is handed over once: a second backward recomputes again."""
        if holder.tensor is None:
            self._recompute()
        tensor, holder.tensor = holder.tensor, None
        assert tensor is not None, "the recompute fills every holder that lives"
        return tensor

    # --- the second run ---------------------------------------------------------------------------------------

    def _recompute(self) -> None:
        saved = 0

        def fill(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal saved
            # Without its graph: that graph is only a by-product, and would hold itself.
            tensor = tensor.detach()
            if self._saved[saved] != _description(tensor):
                raise CheckpointError(
                    f"saved tensor {saved} of the checkpointed function was {_words(self._saved[saved])} in forward "
                    f"and is {_words(_description(tensor))} in the recompute: the function must do the same both "
                    "times (does it depend on random numbers of its own, on a counter, on data that has changed?)"
                )
            holder = self._holders[saved]()
            if holder is not None:  # its part of the graph may be gone already
                holder.tensor = tensor
            saved += 1
            if saved == len(self._holders):
                raise _StopRecomputationError
            return tensor

        args, kwargs = self._inputs()
        replaying = nullcontext() if self._kept_outputs is None else self._kept_outputs.replaying()
        with torch.enable_grad(), self._state_of_forward(), saved_tensors_hooks(fill, lambda t: t):
            with replaying:
                try:
                    self._function(*args, **kwargs)
                except _StopRecomputationError:
                    return
        raise CheckpointError(
            f"the checkpointed function saved {plural(len(self._holders), 'tensor')} in forward and {saved} in the "
            "recompute: it must do the same both times"
        )

    @contextmanager
    def _state_of_forward(self) -> Iterator[None]:
        """Random state and autocast as they were in forward; afterwards as they are now."""
        with ExitStack() as stack:
            for context in self._autocast:
                stack.enter_context(context())
            if self._random_state is not None:
                stack.callback(device.set_random_state, device.random_state())
                device.set_random_state(self._random_state)
            yield


class _SaveInputs(torch.autograd.Function):
    """Saves a region's input tensors as autograd saves anything, so the hooks of a region around it apply to them.

    That is what makes nesting work: the inner region's inputs are forgotten by the outer one.
    """

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*tensors)
        return anchor.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise AssertionError("its output is not used")


_ANCHOR = torch.empty(0, requires_grad=True)  # without it there might be no node to save in


def _saved_inputs(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[], tuple[list[Any], dict[str, Any]]]:
    """Returns a function that gives args and kwargs back."""
    values = [*args, *kwargs.values()]
    places = [i for i, value in enumerate(values) if isinstance(value, torch.Tensor)]
    node = _SaveInputs.apply(_ANCHOR, *(values[i] for i in places)).grad_fn
    others = [None if isinstance(value, torch.Tensor) else value for value in values]
    names, positional = list(kwargs), len(args)

    def inputs() -> tuple[list[Any], dict[str, Any]]:
        again = list(others)
        for i, tensor in zip(places, node.saved_tensors, strict=True):
            again[i] = tensor
        return again[:positional], dict(zip(names, again[positional:], strict=True))

    return inputs


def _autocast_contexts() -> list[Callable[[], Any]]:
    """Contexts that set autocast, ours and PyTorch's, as it is set now, for the CPU and for this rank's device."""
    contexts: list[Callable[[], Any]] = [autocasting.as_now()]
    for kind in sorted({"cpu", device.current().type}):
        settings: dict[str, Any] = {
            "dtype": torch.get_autocast_dtype(kind),
            "enabled": torch.is_autocast_enabled(kind),
            "cache_enabled": torch.is_autocast_cache_enabled(),
        }
        contexts.append(partial(torch.autocast, kind, **settings))
    return contexts


def _chained(functions: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def run(value: Any) -> Any:
        for function in functions:
            value = function(value)
        return value

    return run


def _description(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.dtype, tensor.device


def _words(description: tuple[Any, ...]) -> str:
    shape, dtype, where = description
    return f"{list(shape)} {str(dtype).removeprefix('torch.')} on {where}"
