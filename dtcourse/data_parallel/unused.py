"""Parameters that the loss does not depend on: backward gives them no gradient, and their bucket would wait for ever.

DistributedDataParallel can be told of them in three ways:

    (nothing)                    trust that all are used; one that is not raises an error that names it
    find_unused_parameters=True  after each forward, walk the graph from the output to the parameters that it depends on;
                                 in each backward, one more all-reduce: what is unused here may be used on another rank
    static_graph=True            do both in the first step only, and promise that no later step differs

The extra all-reduce carries 4 bytes a parameter tensor. Source: Li et al., PyTorch Distributed (VLDB 2020, arXiv
2006.15704), section 3.2.3 and algorithm 1; static_graph: the documentation of torch's DistributedDataParallel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.data_parallel.naive import Group

Parameters = set[nn.Parameter]


class UsedParameters:
    """Which of `parameters` this rank's loss depends on, and which any rank's does.

    find:   look in every step
    static: look in the first step, and keep what was found
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], find: bool, static: bool, group: Group
    ) -> None:
        self._all, self._group = list(parameters), group
        self._find, self._static = find or static, static
        self._unused_here: Parameters | None = None
        self._used_somewhere: Parameters | None = None

    def unused_here(self, output: Any) -> Parameters:
        """Those that `output` does not depend on; none where nobody asked."""
        if not self._find:
            return set()
        if self._unused_here is not None:
            return self._unused_here
        used = parameters_below(output)
        return {p for p in self._all if p not in used}

    def used_somewhere(self, unused_here: Parameters | None) -> Parameters:
        """Those that at least one rank's loss depends on. Every rank must call it; None: a rank without data."""
        if not self._find:
            return set(self._all)
        if self._static and unused_here is not None:
            self._unused_here = unused_here
        if self._used_somewhere is not None:
            return self._used_somewhere
        mine = [unused_here is not None and p not in unused_here for p in self._all]
        flags = torch.tensor(mine, dtype=torch.int32, device=self._all[0].device)
        dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=self._group)
        used = {p for p, flag in zip(self._all, flags.tolist(), strict=True) if flag}
        if self._static:
            self._used_somewhere = used
        return used


def parameters_below(output: Any) -> set[torch.Tensor]:
    """The parameters that the tensors in `output` depend on, found by walking the autograd graph."""
    pending: list[Any] = [t.grad_fn for t in _tensors(output) if t.grad_fn is not None]
    found: set[torch.Tensor] = {t for t in _tensors(output) if isinstance(t, nn.Parameter)}
    visited = set()
    while pending:
        node = pending.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if hasattr(node, "variable"):  # AccumulateGrad: the graph's leaf
            found.add(node.variable)
        pending += [parent for parent, _ in node.next_functions]
    return found


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in a nest of lists, tuples, dicts and dataclass-like objects."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
    elif hasattr(value, "__dict__"):
        yield from _tensors(vars(value))
