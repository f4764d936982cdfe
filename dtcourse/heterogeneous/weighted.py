"""Gradients weighted by samples: with other shares on each rank, still the gradient of the whole batch's mean loss.

    model = WeightedDataParallel(model)
    with model.step(len(x)):                              # all ranks say how many samples they have in this step
        if len(x):
            model.weigh(loss(model(x), y)).backward()     # the mean loss of this rank's samples
    optimizer.step()

The mean over ranks of each rank's mean counts a rank's samples the more, the fewer it has: with 12 samples on one and 4
on another, one of the four counts three times as much as one of the twelve. So each rank's loss is multiplied by

    w_r = p n_r / N         n_r: the samples of that loss;  N: those of all p ranks in this step

and then the mean over ranks is the mean over samples. The loss is weighed, not the gradient: so whatever a hook of the
Reducer does with a bucket (compression, half precision) it does with the gradients of the weighted loss, and several
backwards may add up before they travel. w_r is between 0 and p.

A rank without samples has no forward and no backward. It sends zeros when the step ends.

Bytes: an all-reduce of the gradients, as DistributedDataParallel, and 8 bytes from each rank before a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtcourse import device
from dtcourse.emulation import clock
from dtcourse.heterogeneous.fitting import (
    refuse_auxiliary_losses,
    refuse_own_statistics,
    refuse_signs,
    takes_statistics,
)
from dtcourse.heterogeneous.own_work import OwnWork
from dtcourse.parameters import buckets
from dtcourse.parameters.backward import check_only_wrapper, check_same_parameters
from dtcourse.parameters.comm_hooks import CheckedHook, CommHook, check_hook
from dtcourse.parameters.plain_replica import require_all_here
from dtcourse.parameters.replicas import Group, broadcast_model
from dtcourse.parameters.slices import require_replicas
from dtcourse.parameters.unused import UsedParameters
from dtcourse.parameters.wrapper import Wrapper
from dtcourse.plural import plural
from dtcourse.torch_private import device_of_messages


class WeightedDataParallel(Wrapper):
    """Wraps `module` so that a step leaves the gradient of the mean loss over all samples, however many each rank has.

    module:   the same on every rank but for its values, which become rank 0's; buffers stay each rank's own
    group:    the ranks that share the batch; default: all
    bucket_cap_mb, find_unused_parameters: as DistributedDataParallel's

    samples:  of all ranks in the step that is open or was the last one, by rank

    Raises ValueError if the ranks built different models, and for what no weight makes right: batch normalisation over
    other samples than those of the group's ranks, and modules that make a loss of their own (a mixture's gates).
    """

    def __init__(
        self,
        module: nn.Module,
        group: Group = None,
        bucket_cap_mb: float = 25,
        find_unused_parameters: bool = False,
    ) -> None:
        super().__init__()
        require_all_here(module, type(self).__name__, "Give its stages shares of the layers")
        require_replicas(module.named_parameters(), group, type(self).__name__)
        refuse_own_statistics(module, group)
        refuse_auxiliary_losses(module)
        broadcast_model(module, group=group)
        self.module, self.group = module, group
        self.require_backward_grad_sync = True
        self.samples: list[int] = [0] * dist.get_world_size(group)
        names = {p: n for n, p in module.named_parameters() if p.requires_grad}
        if not names:
            raise ValueError("none of the module's parameters needs a gradient: there is no mean")
        self.reducer = OwnWork(
            names,
            group,
            assign=partial(buckets.assign, bytes_each=int(bucket_cap_mb * (1 << 20))),
            used=UsedParameters(list(names), find_unused_parameters, False, group),
        )
        self._open = False
        self._scale: Callable[[torch.Tensor], torch.Tensor] | None = None

    # --- a step ---------------------------------------------------------------------------------------------

    @contextmanager
    def step(
        self, samples: int, scale: Callable[[torch.Tensor], torch.Tensor] | None = None
    ) -> Iterator[None]:
        """Forward and backward of this rank's samples in one step: as many as all its losses together are means over.

        samples: 0 where this rank has none, and the rest of the step is done for it
        scale:   of a loss scaler (`memory.GradScaler().scale`): weigh() scales each loss as well

        A step averages once: all backwards but the last are inside no_sync(), or no_sync() is round the whole step, on
        all ranks.

        Raises ValueError on all ranks for a number that cannot be, where no rank has a sample, and where a rank has
        none and batch statistics are taken over all of them. On a rank that weighs fewer than it said it raises before
        anything is sent, and at the end where nothing was averaged.
        """
        self.begin(samples, scale)
        try:
            yield
        finally:
            self._open = False
        if samples > 0:
            self.reducer.end_step(averages=self.require_backward_grad_sync)
            return
        if scale:  # a scaler asks each rank whether it has scaled a loss
            scale(torch.zeros((), device=device.current()))
        if self.require_backward_grad_sync:  # else no rank sends anything
            # Gradients of steps before, which were not set to None, add up here as on the other ranks.
            self.reducer.local |= {p for p in self.reducer.parameters if p.grad is not None}
            self.reducer.reduce_local()

    def begin(
        self, samples: int, scale: Callable[[torch.Tensor], torch.Tensor] | None = None
    ) -> None:
        """A step begins; all ranks say how many samples they have in it. `step` calls it."""
        where = device_of_messages(self.group)
        valid = isinstance(samples, int) and not isinstance(samples, bool) and samples >= 0
        told = torch.tensor([samples if valid else -1], device=where)
        everyone = [torch.empty_like(told) for _ in self.samples]
        dist.all_gather(everyone, told, group=self.group)
        self.samples = [int(one) for one in torch.cat(everyone).tolist()]
        if min(self.samples) < 0:
            rank = self.samples.index(-1)
            mine = f", {samples!r} here" if not valid else ""
            raise ValueError(
                f"step(samples) takes a whole number, 0 or more, and rank {rank} passed another{mine}"
            )
        if not sum(self.samples):
            raise ValueError("no rank has a sample in this step: leave it out on all of them")
        if 0 in self.samples and self._takes_statistics():
            raise ValueError(
                f"rank {self.samples.index(0)} has no samples, and the others would wait for it in each batch "
                "normalisation: give every rank one at least (Balance(least=1))"
            )
        self.reducer.rebuild()
        self._open, self._scale = True, scale
        self.reducer.begin_step(samples)

    def weigh(self, loss: torch.Tensor, samples: int | None = None) -> torch.Tensor:
        """The loss times what it counts in the batch: call backward on that.

        loss:    the mean over some of this rank's samples
        samples: how many; default: all of the step. Where a loss is a mean over tokens, say tokens in `step` too

        Raises ValueError outside of a step, where more is weighed than the step has, and for more losses than one.
        """
        if loss.numel() != 1:
            raise ValueError(
                f"weigh() takes the mean over samples, one number; got a loss of shape {tuple(loss.shape)}"
            )
        if not self._open:
            raise ValueError(
                "weigh() needs to know all ranks' samples: call it in `with model.step(samples):`"
            )
        mine, weighed = self.reducer.samples, self.reducer.weighed
        samples = mine if samples is None else samples
        if not 0 < samples <= mine - weighed:
            raise ValueError(
                f"this rank has {plural(mine, 'sample')} in this step, {weighed} of them weighed already; got a loss "
                f"of {samples!r} more"
            )
        self.reducer.weighed += samples
        made = loss * (len(self.samples) * samples / sum(self.samples))
        return self._scale(made) if self._scale else made

    @property
    def seconds(self) -> float | None:
        """This rank's own work of the last step, what Balance takes; None where it had no samples.

        From where all ranks had said their samples to where this rank's gradients were all on their way (inside
        no_sync(), to the step's end), without what an emulated clock has seen it wait. A real clock cannot tell
        waiting from work: what waits inside forward or backward (a hook that blocks, expert parallelism) makes all
        ranks look as slow as the slowest.

        Raises ValueError for batch statistics over all ranks on a real clock, where it would be so in each step.
        """
        seconds = self.reducer.seconds
        if seconds is not None and clock.installed() is None and self._takes_statistics():
            raise ValueError(
                "each batch normalisation waits for all ranks, so this rank's seconds are those of the slowest: "
                "measure the model without it (heterogeneous.measured, on a copy), and pass Balance speeds="
            )
        return seconds

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Runs the wrapped module, and prepares for the backward that will follow."""
        if not torch.is_grad_enabled():
            return self.module(*inputs, **keywords)
        if not self._open:
            raise ValueError(
                "a forward for training is part of a step: `with model.step(samples):`"
            )
        check_same_parameters(self.module, self.reducer.names)
        refuse_own_statistics(self.module, self.group)
        if not self.reducer.order:
            check_only_wrapper(self.reducer, self.reducer.names)
        if self.require_backward_grad_sync:
            self.reducer.check_first()
        self._count_forward()
        output = self.module(*inputs, **keywords)
        if self.require_backward_grad_sync:
            self.reducer.prepare_for_backward(output)
        else:
            self.reducer.keep_local(output)
        return output

    def register_comm_hook(self, state: Any, hook: CommHook) -> None:
        """Calls hook(state, bucket) in place of the all-reduce, as DistributedDataParallel does: the hook averages.

        Raises TypeError or ValueError for what is no hook (comm_hooks.py), ValueError for one that takes signs alone,
        which cannot be weighed, and RuntimeError for a second one.
        """
        check_hook(hook)
        refuse_signs(state)
        if self.reducer.hook is not None:
            raise RuntimeError("a model has one communication hook: combine the two in one")

        self.reducer.hook = CheckedHook(hook, state)

    def _takes_statistics(self) -> bool:
        return any(map(takes_statistics, self.module.modules()))

    def _count_forward(self) -> None:
        self.reducer.forwards += 1
        if self.reducer.forwards > 1 and self._takes_statistics():
            raise ValueError(
                "a second forward in this step: batch statistics would be those of a piece and not of the batch, and "
                "ranks with fewer pieces would not take part in them. Take one forward in a step"
            )
