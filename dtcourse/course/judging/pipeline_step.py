"""A pipeline's step as the job of a decision (trials.py): on each rank its seconds, and the most bytes it keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from dtcourse.course.judging import trials
from dtcourse.pipeline_parallel.actions import Schedule


class Kept:
    """The bytes that backward passes still need: while a context is open, what autograd saves is counted, each tensor
    once, and no longer when its graph is gone. Parameters do not count.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.free = {one.data_ptr() for one in parameters}
        self.places: Counter[int] = Counter()  # by address, how many saved tensors begin there
        self.now = self.most = 0

    def counting(self) -> AbstractContextManager[Any]:
        """Around a step."""
        return torch.autograd.graph.saved_tensors_hooks(lambda one: Saved(self, one), Saved.unpack)

    def add(self, place: int, nbytes: int) -> None:
        """A tensor has been saved there."""
        self.places[place] += 1
        if self.places[place] == 1:
            self.now += nbytes
            self.most = max(self.most, self.now)

    def drop(self, place: int, nbytes: int) -> None:
        """A saved tensor is gone."""
        self.places[place] -= 1
        if not self.places[place]:
            self.now -= nbytes


class Saved:
    """A tensor that a graph has saved; it lives as long as the graph needs it."""

    def __init__(self, kept: Kept, tensor: Tensor) -> None:
        # Detached: an output holds its graph, which holds this, and neither would go by itself.
        self.kept, self.tensor = kept, tensor.detach()
        self.place, self.nbytes = tensor.data_ptr(), tensor.nbytes
        self.counts = self.place not in kept.free
        if self.counts:
            kept.add(self.place, self.nbytes)

    def unpack(self) -> Tensor:
        """For backward."""
        return self.tensor

    def __del__(self) -> None:
        if self.counts:
            self.kept.drop(self.place, self.nbytes)


def measured(
    stages: list[nn.Module],
    schedule: Schedule,
    batch: tuple[Tensor, Tensor],
    loss: Callable[[Any, Any], Tensor],
    *,
    recompute: bool = False,
) -> tuple[float, float]:
    """On each rank: the seconds of its part of a step, from a moment that is the same on all, and the most bytes that
    backward passes needed at once. The step before it, in which shapes travel, is not in them.
    """
    from dtcourse import emulation
    from dtcourse.pipeline_parallel.engine import Pipeline

    pipeline = Pipeline(stages, schedule, loss, recompute=recompute)
    pipeline.step(*batch)
    kept = Kept([one for stage in stages for one in stage.parameters()])
    start = trials.begin_together()
    with kept.counting():
        pipeline.step(*batch)
    return emulation.now() - start, float(kept.most)
