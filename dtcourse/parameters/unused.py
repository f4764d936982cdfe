"""Parameters that the loss does not depend on: backward gives them no gradient, and their bucket would wait for ever.

DistributedDataParallel can be told of them in three ways:

    (nothing)                    trust that all are used; one that is not raises an error that names it
    find_unused_parameters=True  after each forward, walk the graph from the output to the parameters that it depends
                                 on; in each backward, one more all-reduce: what is unused here may be used on another
                                 rank
    static_graph=True            see in the first backward which gradients come, and how often;
    promise that no later one differs

The walk is what lets a bucket leave before backward ends although some of it is unused. What it takes for used and gets
no gradient after all is known at the end. The extra all-reduce carries 4 bytes a parameter tensor. Source: Li et al.,
PyTorch Distributed (VLDB 2020, arXiv 2006.15704), section 3.2.3 and algorithm 1; static_graph: the documentation of
torch's DistributedDataParallel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.function import BackwardCFunction

from dtcourse import nested
from dtcourse.parameters.agreement import on_any_rank
from dtcourse.parameters.replicas import Group

Parameters = set[torch.Tensor]


class UsedParameters:
    """Which of `parameters` this rank's loss depends on, and which any rank's does.

    find:   look in every step
    static: look in the first step, and keep what was found
    """

    def __init__(
        self, parameters: Sequence[torch.Tensor], find: bool, static: bool, group: Group
    ) -> None:
        self._all, self._group = list(parameters), group
        self._find, self._static = find and not static, static
        # Of a static graph's first backward, once it is over.
        self._gradients: dict[torch.Tensor, int] | None = None
        self._used_somewhere: Parameters | None = None

    @property
    def varies(self) -> bool:
        """Whether it may be others in each step."""
        return self._find

    @property
    def learning(self) -> bool:
        """Whether the next backward is a static graph's first: what it brings is known when it is over."""
        return self._static and self._gradients is None

    @property
    def all_come(self) -> bool:
        """Whether each parameter that is not `unused_here` must get a gradient."""
        return not self._find and not self.learning

    def unused_here(self, output: Any) -> Parameters:
        """Those that a backward from `output` will not reach, as far as that is known before it."""
        if self._static:
            return set() if self._gradients is None else set(self._all) - self._gradients.keys()
        used = parameters_below(output) if self._find else None
        return set() if used is None else set(self._all) - used

    def learn(self, gradients: dict[torch.Tensor, int]) -> None:
        """Takes how many gradients each parameter got in a backward: in a static graph it will be the same in each."""
        if self.learning:
            self._gradients = dict(gradients)

    def times(self, parameter: torch.Tensor) -> int:
        """Gradients that a backward gives a parameter: more than 1 where reentrant checkpoints share it."""
        return 1 if self._gradients is None else self._gradients.get(parameter, 1)

    def used_somewhere(self, used_here: Parameters) -> Parameters:
        """Those that at least one rank has a gradient for. Every rank must call it, with its own ones."""
        if not self._find and not self._static:
            return set(self._all)
        if self._used_somewhere is not None:
            return self._used_somewhere
        mine = [p in used_here for p in self._all]
        anywhere = on_any_rank(mine, self._group, self._all[0].device)
        used = {p for p, so in zip(self._all, anywhere, strict=True) if so}
        if self._static:
            self._used_somewhere = used
        return used


def parameters_below(output: Any) -> set[torch.Tensor] | None:
    """The parameters that the tensors in `output` depend on, found by walking the autograd graph.

    None where the graph does not show it: nothing in `output` has one, or a custom Function is in it, whose backward
    may run a graph of its own (a reentrant checkpoint's does).
    """
    tensors = nested.tensors(output)
    pending: list[Any] = [t.grad_fn for t in tensors if t.grad_fn is not None]
    found: set[torch.Tensor] = {t for t in tensors if isinstance(t, nn.Parameter)}
    if not pending and not found:
        return None
    visited = set()
    while pending:
        node = pending.pop()
        if node is None or node in visited:
            continue
        if isinstance(node, BackwardCFunction):
            return None
        visited.add(node)
        if hasattr(node, "variable"):  # AccumulateGrad: the graph's leaf
            found.add(node.variable)
        pending += [parent for parent, _ in node.next_functions]
    return found
