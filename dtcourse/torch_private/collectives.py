"""Collectives by their newest names, a Future that can fail, the Work of a Future, and the end of connections."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

# torch 2.13 has new names and warns of the older ones, which older versions have. The arguments are the same: one
# tensor of p parts in rank order, and one part.
_OLDER = {
    "all_gather_single": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
}


def collective(module: Any, name: str) -> Callable[..., Any] | None:
    """The collective `name` of a module that has torch.distributed's names, new or old; None where it has neither."""
    return getattr(module, name, None) or getattr(module, _OLDER.get(name, name), None)


# Every torch has one of the two names.
all_gather_single: Any = collective(dist, "all_gather_single")
reduce_scatter_single: Any = collective(dist, "reduce_scatter_single")


def future_of(value: list[torch.Tensor]) -> tuple[torch.futures.Future, Any]:
    """A Future for torch's C++ (DDP waits on it, and takes the reduced bucket from it) and its trigger.

    `trigger(error)` completes it: with `value` where error is None, else as a failure. A failure has to be raised by
    a function that `then` calls: an exception that is set with `set_exception` reads as success in C++.
    """
    ready: torch.futures.Future = torch.futures.Future()
    errors: list[BaseException | None] = []

    def outcome(_: torch.futures.Future) -> list[torch.Tensor]:
        if errors[0] is not None:
            raise errors[0]
        return value

    def trigger(error: BaseException | None) -> None:
        errors.append(error)
        ready.set_result(None)

    return ready.then(outcome), trigger


def work_of(future: torch.futures.Future) -> dist.Work:
    """torch's own handle of a collective that is over when `future` is: what a ProcessGroup in Python returns.

    A subclass of dist.Work does the same, but one of a notebook cannot travel to the ranks: cloudpickle would make
    pybind11's metaclass anew there.
    """
    return c10d._create_work_from_future(future)  # type: ignore[attr-defined]


def close_connections(backend: Any, rank: int, size: int, tag: int) -> None:
    """Closes all connections of one rank of a gloo group: whoever waits on them, here or there, is woken and raises.

    gloo closes them when a wait passes its time limit; this is such a wait. Its abort() wakes nobody (torch 2.13).
    tag: that no message has
    """
    nothing = torch.empty(1, dtype=torch.uint8)
    for step in range(1, size):
        try:
            backend.recv([nothing], (rank + step) % size, tag).wait(timedelta(milliseconds=1))
        except RuntimeError as error:
            # which closes all of them; one that was broken says otherwise
            if "imed out" in str(error):
                return


class GroupWithoutBackend(dist.ProcessGroup):
    """A base for groups that no backend of torch's stands behind. torch keeps a group's name in its backend."""

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> Any:
        """By which torch's registry knows it."""
        return self._name
