"""Overflow on one rank is overflow on all, whatever techniques have cut the parameters.

A step that some ranks take and others skip leaves pieces of two models. Where gradients are averaged an infinity
reaches all who average. It does not reach those who hold another piece: a tensor rank's neighbour, another expert's
rank, another stage, the owner of another gradient. So what a rank has found is asked for over each axis that a
parameter knows of (placement.py), then over a pipeline (owners.py). After an axis its ranks agree: in the end all do.

Messages: one all-reduce of one number per axis.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch.distributed as dist
from torch import Tensor, nn

from dtcourse import device
from dtcourse.parameters.cuts import Elsewhere, Group
from dtcourse.parameters.naming import gradients_in
from dtcourse.parameters.owners import owners_of


def on_any_part(model: nn.Module, found: Tensor) -> Tensor:
    """The largest of what the ranks that have the model between them have found. A collective.

    found: a scalar tensor, such as 1.0 where a gradient of this rank is not finite. It is asked for when gradients are
           averaged: before, ranks with other samples do not know of it
    """
    found = found.to(device.current())
    for group in _axes(model):
        dist.all_reduce(found, op=dist.ReduceOp.MAX, group=group)
    return found


def _axes(model: nn.Module) -> Iterator[Group]:
    """The groups over which ranks hold parts or copies, each once, in the order in which the model's parameters name
    them: the same on all ranks of a group. What a stage's parameters know of is asked before other stages are.
    """
    cuts = [cut for entry in gradients_in(model) for cut in entry.placed.cuts]
    yield from dict.fromkeys(cut.group for cut in cuts if not isinstance(cut, Elsewhere))
    owners = owners_of(model)
    if owners is not None:
        yield owners.group
