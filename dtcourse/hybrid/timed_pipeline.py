"""A pipeline that knows how long its rank worked: all that a step computes, and no waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from dtcourse.pipeline_parallel import Pipeline
from dtcourse.pipeline_parallel.batch import Batch, Tensors
from dtcourse.streams import Moment


@dataclass
class TimedBatch(Batch):
    """A Batch that notes when each of its computations began and ended. Messages are sent and awaited in between."""

    where: torch.device = field(default_factory=lambda: torch.device("cpu"))
    computed: list[tuple[Moment, Moment]] = field(default_factory=list)

    def forward(self, stage: int, i: int, inputs: Tensors) -> Tensors:
        """A stage's outputs of a micro-batch; on the last stage, its part of the loss."""
        with self._noted():
            return super().forward(stage, i, inputs)

    def backward(self, stage: int, i: int, gradients: Tensors | None, whole: bool) -> Tensors:
        """Backward, or backward-input."""
        with self._noted():
            return super().backward(stage, i, gradients, whole)

    def backward_weight(self, stage: int, i: int) -> None:
        """What backward-input has left."""
        with self._noted():
            super().backward_weight(stage, i)

    @contextmanager
    def _noted(self) -> Iterator[None]:
        began = Moment(self.where)
        yield
        self.computed.append((began, Moment(self.where)))


class TimedPipeline(Pipeline):
    """A Pipeline that measures its steps."""

    computed: list[tuple[Moment, Moment]]

    def batch(
        self,
        x: Any,
        target: Any,
        training: bool = True,
        scale: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> Batch:
        """A batch before its first action; one that trains is measured."""
        made = super().batch(x, target, training, scale)
        if not training:
            return made
        timed = TimedBatch(**vars(made), where=self.mail.device)
        self.computed = timed.computed
        return timed

    def seconds(self) -> float:
        """Of all forwards, losses and backwards of this rank in the last step."""
        return sum(ended.seconds_since(began) for began, ended in self.computed)
