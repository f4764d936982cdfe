"""What torch.distributed's own groups do, told to the recorder: which arguments of which method are what."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from dtcourse.callers import callers
from dtcourse.collectives.flight.entry import Entry
from dtcourse.collectives.flight.recorder import Recorder, as_called, current
from dtcourse.collectives.reduce_ops import name_of

# Method: what it is called, and which of its arguments must be alike on all ranks (None: sizes may differ).
_METHODS: dict[str, tuple[str, int | None]] = {
    "allreduce": ("all_reduce", 0),
    "allreduce_coalesced": ("all_reduce", 0),
    "broadcast": ("broadcast", 0),
    "reduce": ("reduce", 0),
    "allgather": ("all_gather", 1),
    "allgather_coalesced": ("all_gather", 1),
    "all_gather_single": ("all_gather", 1),
    "all_gather_single_coalesced": ("all_gather", 1),
    "_allgather_base": ("all_gather", 1),
    "allgather_into_tensor_coalesced": ("all_gather", 1),
    "reduce_scatter": ("reduce_scatter", 0),
    "reduce_scatter_single": ("reduce_scatter", 0),
    "reduce_scatter_single_coalesced": ("reduce_scatter", 0),
    "_reduce_scatter_base": ("reduce_scatter", 0),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", 0),
    "gather": ("gather", 1),
    "scatter": ("scatter", 0),
    "alltoall": ("all_to_all", None),
    "all_to_all_single": ("all_to_all", None),
    "alltoall_base": ("all_to_all", None),
    "barrier": ("barrier", None),
    "monitored_barrier": ("monitored_barrier", None),
}
_MESSAGES = ("send", "recv", "recv_anysource")
_ROOTED = ("broadcast", "reduce", "gather", "scatter")


class Watched:
    """A watcher of torch_private.watch_groups that tells a Recorder."""

    def __init__(self) -> None:
        self._of_work: weakref.WeakKeyDictionary[Any, list[Entry]] = weakref.WeakKeyDictionary()

    def begins(
        self, method: str, group: Any, args: tuple[Any, ...], kwargs: dict[str, Any], cpp: bool
    ) -> tuple[Recorder, Entry, bool] | None:
        recorder = current()
        if recorder is None:
            return None
        if method in _MESSAGES:
            given = dict(zip(("tensors", "peer", "tag"), args, strict=False))
            if method == "recv_anysource":
                given = {"tensors": args[0], "peer": None, "tag": args[1] if len(args) > 1 else 0}
            kind, asynchronous = as_called(f"i{method[:4]}")
            entry = recorder.begin(
                kind,
                group,
                tensors_in(given["tensors"]),
                asynchronous=asynchronous,
                message=(given.get("peer"), given.get("tag", 0)),
            )
            return recorder, entry, False
        return recorder, collective(recorder, method, group, args, kwargs), cpp

    def posted(self, token: Any, work: Any, error: BaseException | None) -> None:
        recorder, entry, cpp = token
        recorder.posted(entry, work, error, hold=cpp)
        if work is not None:
            self._of_work[work] = [entry]

    def batch_posted(self, work: Any) -> None:
        recorder = current()
        if recorder is not None and work is not None:
            self._of_work[work] = recorder.batch_posted(work)

    def wait_begins(self, work: Any) -> list[Entry] | None:
        entries = self._of_work.get(work)
        if entries is None:
            return None
        for entry in entries:
            # One that is waited for where it is called has the same lines.
            entry.wait_begins(callers() if entry.asynchronous else entry.lines)
        return entries

    def wait_ends(self, token: Any, error: BaseException | None) -> None:
        for entry in token:
            entry.wait_ends(error)


def collective(
    recorder: Recorder, method: str, group: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Entry:
    """The entry of a collective that begins: a method of a ProcessGroup, called with these arguments."""
    name, alike = _METHODS[method]
    tensors = [] if alike is None or len(args) <= alike else tensors_in(args[alike])
    options = kwargs.get("opts", args[-1] if args else None)
    waited = getattr(options, "asyncOp", True) is False or name == "monitored_barrier"
    entry = recorder.begin(name, group, tensors, _detail(name, options), asynchronous=not waited)
    if name == "all_to_all":
        entry.dtype = next((t.dtype for t in tensors_in(args[:2])), None)
    return entry


def _detail(name: str, options: Any) -> dict[str, Any]:
    detail: dict[str, Any] = {}
    if hasattr(options, "reduceOp"):
        try:
            detail["op"] = name_of(options.reduceOp)
        except ValueError:
            detail["op"] = str(options.reduceOp)
    if name in _ROOTED and hasattr(options, "rootRank"):
        detail["root"] = options.rootRank
    return detail


def operation_of(method: str) -> str:
    """What the function is called that calls a method of a ProcessGroup: "all_reduce" for "allreduce"."""
    return _METHODS.get(method, (method, None))[0]


def tensors_in(value: Any) -> list[torch.Tensor]:
    """All tensors in nested lists."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for item in value for t in tensors_in(item)]
    return []
