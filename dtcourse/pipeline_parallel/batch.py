"""One batch on its way through a rank's stages: each action of a schedule, on one micro-batch.

A forward keeps a `Stash` for its backward, which holds no more than autograd has saved: the outputs themselves go to
the next rank, and only their place in the graph stays. The stash goes with the backward, and everything else with the
batch.

What a stage takes and returns is one tensor or a tuple of tensors: the next stage gets each as an argument of its own.
A gradient comes back for those that need one; a mask, or positions, pass without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from dtcourse.events import span
from dtcourse.pipeline_parallel.actions import (
    BACKWARD,
    BACKWARD_WEIGHT,
    FORWARD,
    Action,
    Schedule,
    needed_by,
)
from dtcourse.pipeline_parallel.auxiliary import AuxiliaryLosses
from dtcourse.pipeline_parallel.messages import Mail
from dtcourse.pipeline_parallel.recompute import Before, Recompute
from dtcourse.pipeline_parallel.split_backward import DelayedWeightGradients
from dtcourse.plural import plural

Tensors = tuple[torch.Tensor, ...]


@dataclass
class Stash:
    """What a stage keeps of a micro-batch between its forward and its backward.

    inputs:  what it was called with; those that need a gradient get it here, for the stage before
    outputs: where its outputs that need a gradient, or its loss, stand in the graph
    later:   the weights' half of the backward, if that has a time of its own
    trains:  whether there is anything to do backward
    before:  with recompute, what else the forward has found
    """

    inputs: Tensors
    outputs: tuple[GradientEdge, ...] = ()
    later: DelayedWeightGradients | None = None
    trains: bool = True
    before: Before | None = None


@dataclass
class Batch:
    """One step under way on one rank.

    call:      (stage, micro-batch, inputs) -> what the stage returns
    loss:      (the last stage's output, a micro-batch's target) -> its mean loss
    inputs:    by micro-batch, what the first stage is called with; nothing on ranks without it
    targets:   by micro-batch; nothing on ranks without the last stage
    weights:   by micro-batch, the part of its loss in what is differentiated
    in_halves: the stages and micro-batches whose backward has two halves
    auxiliary: the losses that this rank's stages make themselves
    recompute: by stage, where forwards keep their input only and are run once more before their backward
    scale:     what backward begins with, of a micro-batch's part of the loss: a loss scaler's; the loss itself is kept
    number:    how many came before it: for those who look at the timeline
    before_backward: told the stage and the micro-batch
    """

    schedule: Schedule
    call: Callable[[int, int, Tensors], Any]
    loss: Callable[[Any, Any], torch.Tensor]
    inputs: Sequence[Tensors]
    targets: Sequence[Any]
    weights: Sequence[float]
    in_halves: set[tuple[int, int]]
    auxiliary: AuxiliaryLosses
    recompute: Mapping[int, Recompute] = field(default_factory=dict)
    training: bool = True
    scale: Callable[[torch.Tensor], torch.Tensor] | None = None
    number: int = 0
    before_backward: Callable[[int, int], None] = lambda stage, i: None
    stash: dict[tuple[int, int], Stash] = field(default_factory=dict)
    losses: dict[int, torch.Tensor] = field(default_factory=dict)  # weighted, by micro-batch

    def perform(self, action: Action, mail: Mail) -> None:
        """One action: receive, compute, send."""
        stage, kind, i = action
        came = mail.receive(action)
        made: Tensors | None = None
        with span(repr(action), "compute", detail=action.detail | {"step": self.number}):
            if kind == FORWARD:
                made = self.forward(stage, i, self.inputs[i] if came is None else came)
            elif kind == BACKWARD_WEIGHT:
                self.backward_weight(stage, i)
            else:
                made = self.backward(stage, i, came, whole=kind == BACKWARD)
        to = needed_by(action, self.schedule.num_stages)
        if made is not None and to is not None:
            mail.send(action, made, to)

    def mean_loss(self) -> torch.Tensor | None:
        """The batch's, where its last stage is; None on other ranks. A tensor: nobody waits for its value here."""
        return torch.stack([*self.losses.values()]).sum() if self.targets else None

    def forward(self, stage: int, i: int, inputs: Tensors) -> Tensors:
        """A stage's outputs of a micro-batch; on the last stage, its part of the loss."""
        kept = Stash(tuple(x.detach().requires_grad_(x.requires_grad) for x in inputs))
        if not self.training:
            return self.run(stage, i, kept.inputs)
        self.stash[stage, i] = kept
        if not self.recompute:
            return self.run_to_train(stage, i, kept)
        kept.before = self.recompute[stage].begin()
        outputs = self.run_to_train(stage, i, kept)
        self.recompute[stage].end(kept.before)
        kept.outputs = ()  # the graph goes, and is made once more
        return outputs

    def backward(self, stage: int, i: int, gradients: Tensors | None, whole: bool) -> Tensors:
        """Backward, or backward-input: the gradients of the stage's inputs that need one.

        There is none where neither the stage has anything to train nor a stage before it (frozen first layers).
        """
        kept = self.stash[stage, i]
        self.before_backward(stage, i)
        if kept.before and kept.trains:
            with self.recompute[stage].again(kept.before):
                self.run_to_train(stage, i, kept)
        outputs, kept.outputs, kept.before = kept.outputs, (), None
        if outputs:
            torch.autograd.backward(outputs, gradients)
        del outputs
        # An input that the stage does not use has no gradient, and the stage before waits for one.
        made = tuple(
            torch.zeros_like(x) if x.grad is None else x.grad
            for x in kept.inputs
            if x.requires_grad
        )
        kept.inputs = ()
        if whole:
            del self.stash[stage, i]
        return made

    def backward_weight(self, stage: int, i: int) -> None:
        """What backward-input has left."""
        kept = self.stash.pop((stage, i))
        if kept.trains:
            assert kept.later is not None
            kept.later.compute()

    def run(self, stage: int, i: int, inputs: Tensors) -> Tensors:
        """The stage, and after the last one the loss. The sum of the stages' own losses goes last."""
        inputs, earlier = self.auxiliary.come_with(stage, inputs)
        y = self.call(stage, i, inputs)
        if stage < self.schedule.num_stages - 1:
            made = as_tensors(y, f"Stage {stage} returns")
            return (*made, *self.auxiliary.go_with(stage, earlier, made))
        loss = self.loss(y, self.targets[i])
        loss = sum(self.auxiliary.go_with(stage, earlier, (loss,)), start=loss) * self.weights[i]
        self.losses[i] = loss.detach()
        return (loss if self.scale is None else self.scale(loss),)

    def run_to_train(self, stage: int, i: int, kept: Stash) -> Tensors:
        """The same for a backward: keeps where the outputs stand in the graph, and not the outputs."""
        with ExitStack() as stack:
            if (stage, i) in self.in_halves:
                kept.later = stack.enter_context(DelayedWeightGradients())
            outputs = self.run(stage, i, kept.inputs)
        kept.outputs = tuple(get_gradient_edge(y) for y in outputs if y.requires_grad)
        kept.trains = bool(kept.outputs)
        if not kept.trains:
            if stage == self.schedule.num_stages - 1:
                raise ValueError(
                    f"The loss depends on nothing to train: its {plural(stage + 1, 'stage')} have no trained weights, "
                    "or the last one detaches what it gets."
                )
            kept.inputs = ()
        return tuple(y.detach().requires_grad_(y.requires_grad) for y in outputs)


def as_tensors(value: Any, what: str) -> Tensors:
    """A tensor, or a tuple of them, as a tuple.

    Raises ValueError for anything else: what is not a tensor cannot be sent to another rank.
    """
    found = (value,) if isinstance(value, torch.Tensor) else value
    if not isinstance(found, tuple) or not all(isinstance(one, torch.Tensor) for one in found):
        kinds = type(value).__name__
        if isinstance(found, tuple):
            kinds = f"a tuple of {', '.join(type(one).__name__ for one in found) or 'nothing'}"
        raise ValueError(f"{what} a tensor or a tuple of tensors; got {kinds}.")
    return found


def split_batch(batch: Any, micro_batches: int, name: str) -> list[Tensors]:
    """A batch, one tensor or several with samples on dim 0, in micro-batches as even as they can be."""
    tensors = as_tensors(batch, f"{name} is")
    sizes = [len(one) if one.dim() else 0 for one in tensors]
    if len(set(sizes)) > 1:
        raise ValueError(
            f"The tensors of {name} have the same samples on dim 0; they have {sizes} of them."
        )
    if sizes[0] < micro_batches:
        raise ValueError(
            f"{name} has {plural(sizes[0], 'sample')}, too few for "
            f"{plural(micro_batches, 'micro-batch', 'micro-batches')} of one sample or more."
        )
    parts = zip(*(one.detach().tensor_split(micro_batches) for one in tensors), strict=True)
    return list(parts)


def check_scale(scale: object) -> None:
    """Whether it can scale a loss; a number cannot: a loss scaler's changes from step to step."""
    if not callable(scale):
        raise ValueError(f"scale is a function, such as a loss scaler's .scale; got {scale!r}")


def samples(target: Any) -> int:
    """How many samples a micro-batch has, by its target: a tensor, or several with the samples on dim 0."""
    return len(as_tensors(target, "A target is")[0])
