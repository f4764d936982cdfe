"""Losses that are made inside the stages, such as those of experts' gates: they travel to the last stage.

A micro-batch's loss is made on the last stage. The loss of a gate (`auxiliary_loss` of a module, as models.MoE has it)
is made in the stage that has the gate. So each stage adds its own to the sum that has come with the activations, and
the sum goes on with what the stage makes, as one number more. The last stage adds it to its own loss, and weighs both.

The loss that is reported is thus all of the loss. And only the last stage knows what a micro-batch counts (n_i / n by
its targets): backward brings that number back to each gate, with the gradients of the activations. (Megatron-LM's
MoEAuxLossAutoScaler begins a backward on each stage instead, with one factor for all micro-batches: nothing is sent,
and the last stage's loss is without the gates'.)

A balancing loss is a product of two means over the tokens of one forward, so here it is about one micro-batch, on all
the ranks that the gate's `scope` speaks for. The mean of those losses is another one than that of the whole batch.

Messages: from the first stage with such a loss on, one number per border and micro-batch, forward and back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from dtcourse.parameters.wrapper import unwrapped

Tensors = tuple[torch.Tensor, ...]


def makers(module: nn.Module) -> list[Any]:
    """The modules inside that make a loss of their own in each forward."""
    return [one for one in module.modules() if hasattr(one, "auxiliary_loss")]


def first_stage(layers: Any, ranges: Iterable[range]) -> int | None:
    """The first stage in which a loss is made; None where none is. layers, ranges: as split's."""
    with_loss = (s for s, chosen in enumerate(ranges) if any(makers(layers[i]) for i in chosen))
    return next(with_loss, None)


class AuxiliaryLosses:
    """Those of a rank's stages.

    stages: this rank's, by number. `split` has told each in which one of the whole model the first loss is made

    Raises ValueError for a loss that is made in a stage which `split` has not made.
    """

    def __init__(self, stages: Mapping[int, nn.Module]) -> None:
        found = {stage: unwrapped(module) for stage, module in stages.items()}
        self.first: int | None = None
        self.makers = {stage: makers(module) for stage, module in found.items()}
        for stage, module in found.items():
            if hasattr(module, "first_loss"):
                self.first = module.first_loss
            elif self.makers[stage]:
                raise ValueError(
                    f"Stage {stage} makes a loss of its own (auxiliary_loss of a "
                    f"{type(self.makers[stage][0]).__name__}), which has to travel to the last stage, and the stages "
                    "after this one do not know of it. Let `split` make the stages, which tells all of them."
                )

    def come_with(self, stage: int, inputs: Tensors) -> tuple[Tensors, Tensors]:
        """What a stage is called with, and the sum of the earlier stages' losses: one tensor or none."""
        for maker in self.makers.get(stage, ()):
            maker.auxiliary_loss = None
        if self.first is None or stage <= self.first:
            return inputs, ()
        return inputs[:-1], inputs[-1:]

    def go_with(self, stage: int, earlier: Tensors, made: Tensors) -> Tensors:
        """The sum after a stage's forward, which has made `made`: one tensor, or none before the first loss.

        The modules keep the value of theirs; the graph goes on with the sum alone.
        """
        if self.first is None or stage < self.first:
            return ()
        losses = list(earlier)
        for maker in self.makers.get(stage, ()):
            if maker.auxiliary_loss is not None:
                losses.append(maker.auxiliary_loss)
                maker.auxiliary_loss = maker.auxiliary_loss.detach()
        if not losses:
            return (made[0].new_zeros((), dtype=torch.promote_types(made[0].dtype, torch.float32)),)
        return (sum(losses[1:], start=losses[0]),)
