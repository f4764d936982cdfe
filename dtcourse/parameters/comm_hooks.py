"""What a communication hook is, and what it returns: checked where it is registered, and again where it is called.

    def hook(state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]: ...

A hook that forgets its `return`, or returns the Work of an all-reduce in place of its Future, fails somewhere in a hook
of backward, in words of neither. PyTorch's wrapper raises these types of errors, so that a change of import keeps them.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from dtcourse.parameters.buckets import Bucket
from dtcourse.parameters.hook_states import note_called

CommHook = Callable[[Any, Any], torch.futures.Future[torch.Tensor]]


def check_hook(hook: Any) -> None:
    """Raises TypeError for what cannot be called, ValueError for what takes or says that it returns something else."""
    if not callable(hook):
        raise TypeError(
            f"Communication hook must be callable, as hook(state, bucket); got {hook!r}"
        )
    try:
        signature = inspect.signature(hook)
    except ValueError:  # of some that are not written in Python nobody can tell
        return
    try:
        signature.bind(None, None)
    except TypeError:
        raise ValueError(
            f"a communication hook is called as hook(state, bucket), and this one is {_name(hook)}{signature}"
        ) from None
    hints = _hints(hook)
    places = [p.name for p in signature.parameters.values() if p.kind != p.KEYWORD_ONLY]
    bucket = hints.get(places[1], Any) if len(places) > 1 else Any
    if bucket not in (Any, dist.GradBucket, Bucket):
        raise ValueError(
            f"Communication hook: bucket annotation should be dist.GradBucket, and is {bucket}"
        )
    returned = hints.get("return", Any)
    future = torch.futures.Future
    if returned is not Any and returned is not future and typing.get_origin(returned) is not future:
        raise ValueError(
            f"Communication hook: return annotation should be torch.futures.Future[torch.Tensor], and is {returned}"
        )


class CheckedHook:
    """Calls hook(state, bucket), and sees to it that a Future of the bucket's elements comes back."""

    def __init__(self, hook: CommHook, state: Any) -> None:
        self.hook, self.state = hook, state

    def __call__(self, bucket: Bucket) -> CheckedFuture:
        """Raises RuntimeError for what is no Future."""
        note_called(self.state)
        returned: Any = self.hook(self.state, bucket)
        if isinstance(returned, dist.Work):
            raise RuntimeError(
                f"the communication hook {_name(self.hook)} returned a Work, and has to return its Future: "
                "return work.get_future(), with .then(...) for what is left to do"
            )
        if not hasattr(returned, "wait"):
            what = (
                "returned None (a return is missing at its end)"
                if returned is None
                else f"returned {_kind(returned)}"
            )
            raise RuntimeError(
                f"the communication hook {_name(self.hook)} {what}; it has to return a torch.futures.Future of the "
                "bucket's averaged flat tensor"
            )
        return CheckedFuture(_name(self.hook), returned, bucket.elements)


class CheckedFuture:
    """The Future that a hook has returned."""

    def __init__(self, name: str, future: Any, elements: int) -> None:
        self.name, self.future, self.elements = name, future, elements

    def wait(self) -> Any:
        """Its value; RuntimeError where that is not a tensor of as many elements as the bucket has."""
        value = self.future.wait()
        tensor = value[0] if isinstance(value, list) and len(value) == 1 else value
        if not isinstance(tensor, torch.Tensor):
            raise RuntimeError(
                f"the communication hook {self.name} returned a Future of {_kind(tensor)}: a tensor is wanted"
            )
        if tensor.numel() != self.elements:
            raise RuntimeError(
                f"the communication hook {self.name} returned a Future of a tensor of {tensor.numel()} elements, and "
                f"the bucket has {self.elements}"
            )
        return value


def _hints(hook: Any) -> dict[str, Any]:
    """Annotations by name, as objects; those that cannot be looked up are left out."""
    function = hook if inspect.isroutine(hook) else getattr(hook, "__call__", hook)  # noqa: B004
    try:
        return typing.get_type_hints(function)
    except Exception:
        return {}


def _name(hook: Any) -> str:
    return getattr(hook, "__name__", type(hook).__name__)


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
