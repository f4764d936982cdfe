"""Every collective and message of torch's own groups, seen as it is posted and as its handle is waited for.

Python calls a method of dist.ProcessGroup, whoever imported which function when, so the methods are replaced on the
class. C++ (DDP's Reducer, functional collectives) goes past them, through the operations of torch.ops.c10d: those that
it calls get a kernel in front of the device's, for a dispatch key that every call passes (BackendSelect).

Such a kernel holds Python's lock, and must let go of it before gloo's is called: gloo's own thread frees what it has
done under a lock that posting takes, and to free a tensor that Python knows it takes Python's. torch's own calls of an
operation let go of it; SafeKernelFunction.call_boxed does not, and hung within 5,000 all_reduces.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist

from dtcourse.torch_private.groups import DATA_METHODS

# torch.ops.c10d's operation: the method of ProcessGroup with the same arguments in front
FROM_CPP = {
    "allreduce_": "allreduce",
    "allreduce_coalesced_": "allreduce_coalesced",
    "broadcast_": "broadcast",
    "allgather_": "allgather",
    "_allgather_base_": "_allgather_base",
    "allgather_into_tensor_coalesced_": "allgather_into_tensor_coalesced",
    "_reduce_scatter_base_": "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter_tensor_coalesced",
    "alltoall_base_": "alltoall_base",
}


class Watcher(Protocol):
    """What hears of them. None for a token: this one is not to be watched further."""

    def begins(
        self, method: str, group: Any, args: tuple[Any, ...], kwargs: dict[str, Any], cpp: bool
    ) -> Any:
        """A method of a group is called, by C++ with its tensors alone. Returns a token."""

    def posted(self, token: Any, work: Any, error: BaseException | None) -> None:
        """It has returned its Work (None inside a batch of NCCL's), or raised."""

    def batch_posted(self, work: Any) -> None:
        """A batch has been started: `work` is the handle of all that were posted without one."""

    def wait_begins(self, work: Any) -> Any:
        """A handle is waited for. Returns a token."""

    def wait_ends(self, token: Any, error: BaseException | None) -> None:
        """That wait is over."""


_here = threading.local()  # .inside: a method of a group is being called, which C++ passes on


def watch_groups(watcher: Watcher) -> Callable[[], None]:
    """From here on `watcher` hears of all that torch's groups do in this process. Returns what ends that."""
    watched: list[tuple[Any, str]] = [
        (dist.ProcessGroup, name) for name in (*DATA_METHODS, "_end_coalescing")
    ]
    watched += [(dist.Work, "wait")]
    # As they lie in the class: what getattr gives would not be bound when it is put back.
    originals = [(kind, name, vars(kind)[name]) for kind, name in watched if name in vars(kind)]
    for kind, name, _ in originals:
        original = getattr(kind, name)
        if name == "wait":
            setattr(kind, name, _watched_wait(original, watcher))
        elif name == "_end_coalescing":
            setattr(kind, name, _watched_end(original, watcher))
        else:
            setattr(kind, name, _watched_method(name, original, watcher))
    library = _watch_cpp(watcher)

    def end() -> None:
        for kind, name, original in originals:
            setattr(kind, name, original)
        library._destroy()

    return end


def _watched_method(name: str, original: Any, watcher: Watcher) -> Callable[..., Any]:
    @functools.wraps(original)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = watcher.begins(name, self, args, kwargs, False)
        before, _here.inside = getattr(_here, "inside", False), True
        try:
            work = original(self, *args, **kwargs)
        except BaseException as error:
            if token is not None:
                watcher.posted(token, None, error)
            raise
        finally:
            _here.inside = before
        if token is not None:
            watcher.posted(token, work, None)
        return work

    return watched


def _watched_end(original: Any, watcher: Watcher) -> Callable[..., Any]:
    @functools.wraps(original)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        work = original(self, *args, **kwargs)
        watcher.batch_posted(work)
        return work

    return watched


def _watched_wait(original: Any, watcher: Watcher) -> Callable[..., Any]:
    @functools.wraps(original)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = watcher.wait_begins(self)
        if token is None:
            return original(self, *args, **kwargs)
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            watcher.wait_ends(token, error)
            raise
        watcher.wait_ends(token, None)
        return result

    return watched


def _watch_cpp(watcher: Watcher) -> Any:
    library = torch.library.Library("c10d", "IMPL")
    for operation, method in FROM_CPP.items():
        overload = getattr(torch.ops.c10d, operation).default
        library.impl(operation, _watched_kernel(method, overload, watcher), "BackendSelect")
    return library


def _watched_kernel(method: str, overload: Any, watcher: Watcher) -> Callable[..., Any]:
    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        key = getattr(torch._C.DispatchKey, _device_of(args).type.upper())
        return overload._op_dk(key, *args, **kwargs)  # without Python's lock

    def watched(*args: Any, **kwargs: Any) -> Any:
        if getattr(_here, "inside", False):
            return call(args, kwargs)
        place = next(i for i, value in enumerate(args) if isinstance(value, torch.ScriptObject))
        group = dist.ProcessGroup.unbox(args[place])  # type: ignore[attr-defined]
        token = watcher.begins(method, group, args[:place], {}, True)
        try:
            result = call(args, kwargs)
        except BaseException as error:
            if token is not None:
                watcher.posted(token, None, error)
            raise
        if token is not None:
            boxed = result[-1] if isinstance(result, (tuple, list)) else result
            watcher.posted(token, dist.Work.unbox(boxed), None)  # type: ignore[attr-defined]
        return result

    return watched


def _device_of(args: Any) -> torch.device:
    """Where the first tensor is, in whatever lists: the kernel of this device is meant."""
    for value in args:
        if isinstance(value, torch.Tensor):
            return value.device
        if isinstance(value, (list, tuple)) and value:
            return _device_of(value)
    return torch.device("cpu")
