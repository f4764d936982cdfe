"""Techniques whose sum over one axis of the mesh is left out, or made twice: each equality test has to see it.

The code is as it is: what changes are torch.distributed's collectives under it, on the ranks that take part in a test.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from dtcourse.pipeline_parallel import engine
from dtcourse.sharding import reduction
from dtcourse.tensor_parallel import mappings

MUTATIONS = ("dropped", "doubled")


class Finished:
    """The work of a collective that was never sent."""

    def __init__(self, result: torch.Tensor) -> None:
        self.result = result

    def wait(self) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> Any:
        future: Any = torch.futures.Future()
        future.set_result([self.result])
        return future


@contextmanager
def sum_over(mesh: DeviceMesh, axis: str, mutation: str) -> Iterator[list[str]]:
    """Every sum of fractions over an axis of the mesh is left out or doubled: yields what was changed, as it is.

    dropped: each rank goes on with what it has. doubled: with twice the sum
    Counts, flags and other reductions (MAX of an agreement) stay right.
    """
    ranks, changed = dist.get_process_group_ranks(mesh.get_group(axis)), []
    if len(ranks) == 1:
        raise ValueError(f"one rank on the axis {axis!r}: no sum over it can be wrong")
    with ExitStack() as patches:
        for name in ("all_reduce", "reduce"):
            made = _mutated(name, getattr(dist, name), ranks, mutation, changed)
            patches.enter_context(patch.object(dist, name, made))
        for module in (reduction, mappings):
            name = "reduce_scatter_single"
            made = _mutated(name, getattr(module, name), ranks, mutation, changed)
            patches.enter_context(patch.object(module, name, made))
        if axis == "pipe":
            made = _of_copies(engine.sum_over_copies, mutation, changed)
            patches.enter_context(patch.object(engine, "sum_over_copies", made))
        yield changed


def _mutated(name: str, right: Any, ranks: list[int], mutation: str, changed: list[str]) -> Any:
    def collective(*args: Any, **keywords: Any) -> Any:
        over = keywords.get("group") or next(
            (a for a in args if isinstance(a, dist.ProcessGroup)), None
        )
        op = keywords.get("op", dist.ReduceOp.SUM)
        sums = op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG) and args[0].is_floating_point()
        if dist.get_process_group_ranks(over) != ranks or not sums:
            return right(*args, **keywords)
        changed.append(name)
        if mutation == "doubled":
            *before, summed = args[:2] if name == "reduce_scatter_single" else args[:1]
            return right(*before, summed.mul_(2), *args[len(before) + 1 :], **keywords)
        if name == "reduce_scatter_single":
            args[0].copy_(args[1].chunk(len(ranks))[dist.get_rank(over)].view_as(args[0]))
        return Finished(args[0]) if keywords.get("async_op") else None

    return collective


def _of_copies(right: Any, mutation: str, changed: list[str]) -> Any:
    """A tied weight's gradients are summed between stages by messages."""

    def sum_over_copies(copies: Any, group: Any) -> None:
        changed.extend("sum_over_copies" for _ in copies)
        if mutation == "doubled":
            right(copies, group)
            right(copies, group)

    return sum_over_copies
