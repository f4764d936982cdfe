"""What every engine has of a pipeline on its rank: the stages, the messages, and proof that they fit the schedule.

Two engines stand on it. engine.py's Pipeline updates weights once a step, after all backwards; pipedream.py's PipeDream
after each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtcourse import device
from dtcourse.collectives import p2p
from dtcourse.parameters.cuts import EXPERT, OTHER, TENSOR
from dtcourse.parameters.plain_replica import require_all_here
from dtcourse.parameters.slices import require_whole
from dtcourse.parameters.wrapper import Wrapper
from dtcourse.pipeline_parallel.actions import BACKWARD_WEIGHT, FORWARD, Schedule
from dtcourse.pipeline_parallel.auxiliary import AuxiliaryLosses
from dtcourse.pipeline_parallel.batch import Batch, Tensors, samples, split_batch
from dtcourse.pipeline_parallel.copies import copies_in, take_first_copies
from dtcourse.pipeline_parallel.messages import Mail
from dtcourse.pipeline_parallel.recompute import Recompute
from dtcourse.pipeline_parallel.stages import Held
from dtcourse.pipeline_parallel.validate import validate
from dtcourse.plural import plural


class Performer:
    """One rank of a pipeline. For the arguments see Pipeline and PipeDream.

    module: this rank's stages; states, gradients and norms of it (dtcourse/parameters) are the whole model's
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        schedule: Schedule,
        loss: Callable[[Any, Any], torch.Tensor],
        group: dist.ProcessGroup | None = None,
        *,
        weigh: Callable[[Any], float] = samples,
        recompute: bool = False,
    ) -> None:
        validate(schedule)
        self.rank, ranks = p2p.rank(group), p2p.size(group)
        if ranks != schedule.num_ranks:
            raise ValueError(
                f"{schedule!r} is for {plural(schedule.num_ranks, 'rank')}, and the group has {ranks}."
            )
        mine = schedule.stages_of(self.rank)
        if len(stages) != len(mine):
            raise ValueError(
                f"Rank {self.rank} holds {plural(len(mine), 'stage')} in {schedule!r} (stages {mine}); got "
                f"{len(stages)}."
            )
        for stage in stages:
            require_all_here(stage, "A stage", "Pass the stages that `split` has made, as a list")
        self.stages = dict(zip(mine, stages, strict=True))
        self.schedule, self.loss, self.group = schedule, loss, group
        self.module = Held(self.stages, group, self.held_before, self.spread_gradients)
        self.auxiliary = AuxiliaryLosses(self.stages)
        self.weigh = weigh
        self.recompute = {s: Recompute(one) for s, one in self.stages.items()} if recompute else {}
        self.numbers = count()
        self.in_halves = {
            (stage, i) for stage, kind, i in schedule.ranks[self.rank] if kind == BACKWARD_WEIGHT
        }
        if self.in_halves:
            require_unsharded_halves(self.module)
            require_unwrapped_halves(stages)
        here = device_of(stages)
        self.mail = Mail(schedule, group, here)
        self.forward_only = _forwards(schedule)
        self.quiet_mail = Mail(self.forward_only, group, here)

    def copies(self) -> list[tuple[nn.Parameter, list[int]]]:
        """What `split` has found to be tied, and is trained: asked for in each step, since sharding puts others in
        their place.
        """
        found = copies_in(self.stages, self.schedule, self.rank)
        return [(parameter, ranks) for parameter, ranks in found if parameter.requires_grad]

    def spread_gradients(self) -> None:
        """Gives all copies of a parameter the gradient of the first."""
        take_first_copies(self.copies(), self.group)

    def held_before(self) -> Collection[nn.Parameter]:
        """The parameters of which an earlier rank of the pipeline holds a copy."""
        copies = copies_in(self.stages, self.schedule, self.rank)
        return {parameter for parameter, ranks in copies if ranks[0] != self.rank}

    def call(self, stage: int, i: int, inputs: Tensors) -> Any:
        """What a stage makes of a micro-batch."""
        return self.stages[stage](*inputs)

    def before_backward(self, stage: int, i: int) -> None:
        """Called before each backward of a stage; nothing to do here."""

    def batch(
        self,
        x: Any,
        target: Any,
        training: bool = True,
        scale: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> Batch:
        """A batch before its first action. x, target: only the ranks of the first and of the last stage look at them.
        scale: as Pipeline.step's.

        Raises ValueError if it has fewer samples than there are micro-batches, or is no tensor (or tuple of tensors).
        """
        m = self.schedule.micro_batches
        inputs = split_batch(x, m, "x") if 0 in self.stages else []
        targets: list[Any] = []
        weights: list[float] = []
        if self.schedule.num_stages - 1 in self.stages:
            targets = list(split_batch(target, m, "target"))
            if isinstance(target, torch.Tensor):
                targets = [one for (one,) in targets]
            weights = self.weights_of(targets)
        elif scale:  # the loss is elsewhere, and each rank's scaler asks whether it has scaled one
            scale(torch.zeros((), device=self.mail.device))
        return Batch(
            schedule=self.schedule,
            call=self.call,
            loss=self.loss,
            inputs=inputs,
            targets=targets,
            weights=weights,
            in_halves=self.in_halves,
            auxiliary=self.auxiliary,
            recompute=self.recompute,
            training=training,
            scale=scale,
            number=next(self.numbers),
            before_backward=self.before_backward,
        )

    def weights_of(self, targets: Sequence[Any]) -> list[float]:
        """What each micro-batch's mean loss counts in the mean loss of the batch: n_i / n (samples,
        or what `weigh` counts).
        """
        weights = [float(self.weigh(one)) for one in targets]
        total = sum(weights)
        if not total > 0:
            raise ValueError(
                f"The micro-batches count {weights}: all of them nothing. What does `weigh` count?"
            )
        return [one / total for one in weights]

    @contextmanager
    def step_with(self, mail: Mail) -> Iterator[None]:
        """A step from its beginning to its end: what stops it on this rank stops it on those that wait for it, too."""
        mail.start()
        try:
            yield
            mail.finish()
        except Exception as error:
            mail.refuse(error)
            raise

    @torch.no_grad()
    def evaluate(self, x: Any, target: Any) -> torch.Tensor | None:
        """The mean loss of a batch on the last stage's rank (None elsewhere): forwards alone, nothing is kept.

        Raises ValueError as a step does. Of what only the last stage's rank refuses (its target) the others do not
        hear: they have done their part.
        """
        with self.step_with(self.quiet_mail):
            batch = self.batch(x, target, training=False)
            for action in self.forward_only.ranks[self.rank]:
                batch.perform(action, self.quiet_mail)
        return batch.mean_loss()


def device_of(stages: Sequence[nn.Module]) -> torch.device:
    """Where a rank's stages compute: where their first weight is; without weights, this rank's device."""
    for stage in stages:
        for tensor in (*stage.parameters(), *stage.buffers()):
            return tensor.device
    return device.current()


def require_unsharded_halves(model: nn.Module) -> None:
    """Raises ValueError where a backward in two halves would compute with weights that are freed in between."""
    require_whole(
        model.named_parameters(),
        "A backward in two halves",
        "the whole weights, and the place of their gradients, are freed after the first half",
        "Take a schedule of whole backwards (gpipe, one_f_one_b), or leave full sharding out",
        besides=(TENSOR, EXPERT, OTHER),
    )


def require_unwrapped_halves(stages: Sequence[nn.Module]) -> None:
    """Raises ValueError where each part of a backward in two halves would be taken for all of a step's gradients."""
    wrappers = [type(stage).__name__ for stage in stages if isinstance(stage, Wrapper)]
    if wrappers:
        raise ValueError(
            f"A backward in two halves is many small ones, and {wrappers[0]} reduces the gradients of each: "
            "take a schedule of whole backwards (gpipe, one_f_one_b), or leave the wrapper out and call "
            "optimizer.reduce_gradients() after the step"
        )


def _forwards(schedule: Schedule) -> Schedule:
    """The forwards of a schedule, in its order."""
    lists = [[action for action in actions if action.kind == FORWARD] for actions in schedule]
    return replace(schedule, ranks=lists)
