"""The engine: performs any schedule on ranks, with a model's stages, micro-batch by micro-batch.

    schedule = zb_h1(ranks=4, micro_batches=8)
    stages = split(model, balance(costs, schedule.num_stages), schedule, rank)
    pipeline = Pipeline(stages, schedule, loss=F.cross_entropy)
    loss = pipeline.step(x, target)       # every rank calls it with the same batch
    optimizer.step()                      # gradients are those of the mean loss

In each action a stage does one micro-batch's forward, or its backward, or one of its halves (batch.py). Messages travel
while the rank computes (messages.py). Weights stay as they are until the step is over.

Gradients: the loss of micro-batch i counts n_i / n, n_i its samples (or tokens, see `weigh`). Sums of those over
micro-batches, whatever their number and sizes, are the gradients of the mean loss of the whole batch.

Source: Huang et al. 2019, GPipe, 1811.06965; Narayanan et al. 2019, PipeDream; Qi et al. 2023, 2401.10241.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.parameters.owners import note_copied
from dtcourse.parameters.partial_gradients import PartialGradients, summed_once
from dtcourse.parameters.placement import local
from dtcourse.pipeline_parallel.actions import BACKWARD, Schedule
from dtcourse.pipeline_parallel.batch import check_scale, samples
from dtcourse.pipeline_parallel.copies import gradient_owner, lies_in_a_flat, sum_over_copies
from dtcourse.pipeline_parallel.performer import Performer
from dtcourse.pipeline_parallel.replicas import Replicas
from dtcourse.pipeline_parallel.stages import split as split  # where a pipeline begins
from dtcourse.pipeline_parallel.wrapped import refuse_wrapped


class Pipeline(Performer):
    """Performs a schedule's steps with this rank's stages.

    stages:   this rank's, in the model's order (`schedule.stages_of(rank)`); each takes and returns one tensor, or a
              tuple of tensors, of which the next stage gets each as an argument of its own
    schedule: who does what; the same on all ranks
    loss:     (output, target) -> the mean loss of a micro-batch; called on the last stage's rank
    group:    the pipeline's ranks; default: all
    weigh:    target -> what a micro-batch counts; default: its samples. For losses that are means over tokens, the
              tokens
    recompute: forwards keep their input only, and are run once more before their backward, with the same random
              numbers and buffers: BatchNorm counts a micro-batch once
    reduce_once: fully sharded stages keep whole gradients until their last micro-batch, and send them once: m times
              fewer bytes. Parameters stay whole from the first backward until then, and are gathered no more. Both take
              as much memory as the stages' parameters take whole
    data_parallel: ranks that hold the same stages and have other samples: gradients are averaged over them, once, each
              stage's from its last backward on, beside the actions that follow (replicas.py); with 4 bytes for each
              parameter: whether a rank has used it
    shared:   parameters of which ranks of the pipeline hold copies (first and last stage's embedding), each with the
              group of those ranks: their gradients are summed. Copies on one rank are the same parameter and need
              nothing. Default: what `split` has found in the model; stages of your own say nothing of it

    What tensor, sequence and expert parallelism cut, they cut before the model is split; full sharding takes the
    stages, before they come here, and so does ZeRO-2: ShardedDataParallel(stage, optimizer), with one optimizer for all
    stages of the rank, sends gradients to their owners after each micro-batch. optimizer.reduce_gradients() after the
    step sends them once, and they are whole until then; with tied weights on two replicas at most. States, gradients
    and norms of `module` are the whole model's (dtcourse/parameters).

    Raises ScheduleError if the schedule cannot be run. Raises ValueError if ranks or stages are not those of the
    schedule, for backwards in two halves of stages that are fully sharded, for stages in a wrapper that averages after
    each backward, and for a mean over ranks that hold different slices.
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
        reduce_once: bool = False,
        data_parallel: dist.ProcessGroup | None = None,
        shared: Iterable[tuple[nn.Parameter, dist.ProcessGroup]] | None = None,
    ) -> None:
        super().__init__(stages, schedule, loss, group, weigh=weigh, recompute=recompute)
        if not schedule.flush:
            raise ValueError(
                f"{schedule.name} updates weights after each micro-batch, Pipeline once after all of them: use "
                "pipeline_parallel.pipedream.PipeDream, which has the optimizer too."
            )
        refuse_wrapped(stages)
        self.reduce_once = reduce_once
        self.last = {stage: i for stage, kind, i in schedule.ranks[self.rank] if kind == BACKWARD}
        self.shared = None if shared is None else list(shared)
        if any(lies_in_a_flat(parameter) for parameter, _ in self.shared or ()):
            raise ValueError(
                "shared: parameters that FullyShardedDataParallel has cut lie elsewhere in each stage's flat: take "
                "fully_shard, or leave `shared` out and let `split` find what is tied"
            )
        if any(gradient_owner(parameter) for parameter, _ in self.shared or ()):
            raise ValueError(
                "shared: ZeRO-2 leaves a gradient on one replica, and on another one of each stage: leave `shared` out "
                "and let `split` find what is tied"
            )
        self.replicas: Replicas | None = None
        if data_parallel is not None:
            self.replicas = Replicas(self.stages, schedule.ranks[self.rank], data_parallel)
        note_copied(self.copied())
        self.partial = PartialGradients(self.module)

    def step(
        self, x: Any, target: Any, scale: Callable[[torch.Tensor], torch.Tensor] | None = None
    ) -> torch.Tensor | None:
        """Forward and backward of one batch: adds the gradients of its mean loss to every `.grad`.

        x, target: the whole batch: a tensor with samples on dim 0, or a tuple of such. Only the ranks of the first and
        of the last stage look at them.
        scale: of a loss scaler, `memory.GradScaler(model=pipeline.module).scale`: gradients are as many times too
        large, those of losses that are made inside the stages (gates') as well. Scaled in `loss`, those would not be.

        Returns the mean loss on the last stage's rank, not scaled, None elsewhere: a tensor, for whose value nobody has
        waited.

        Raises ValueError if scale is no function, the batch has fewer samples than there are micro-batches, or a
        stage's outputs change in shape: on the rank that finds it, and as StepRefused on those that wait for that rank.
        """
        if scale is not None:
            check_scale(scale)
        with self.summing_shared(), summed_once(self.partial):
            with self.step_with(self.mail):
                batch = self.batch(x, target, scale=scale)
                if self.replicas:
                    self.replicas.begin()
                for place, action in enumerate(self.schedule.ranks[self.rank]):
                    batch.perform(action, self.mail)
                    if self.replicas:
                        self.replicas.performed(place)
            # The mean before the sum over copies, which gives all of them the same bits: a mean over three replicas
            # rounds by a gradient's place in its bucket, and that is another one in each stage.
            if self.replicas:
                self.replicas.finish()
        return batch.mean_loss()

    def before_backward(self, stage: int, i: int) -> None:
        """reduce_once: the last micro-batch's backward sends what all have left, the others send nothing. Until then
        parameters stay whole, as gradients do.
        """
        sharded: Any = self.stages[stage]
        if self.reduce_once and hasattr(sharded, "set_requires_gradient_sync"):
            sharded.set_requires_gradient_sync(i == self.last[stage])
            sharded.set_reshard_after_backward(i == self.last[stage])

    def copied(self) -> list[nn.Parameter]:
        """The parameters of this rank of which others hold copies."""
        held = self.copies() if self.shared is None else self.shared
        return [parameter for parameter, _ in held]

    def held_before(self) -> Collection[nn.Parameter]:
        """The parameters of which an earlier rank of the pipeline holds a copy."""
        if self.shared is None:
            return super().held_before()
        return {parameter for parameter, group in self.shared if dist.get_rank(group) > 0}

    def spread_gradients(self) -> None:
        """Gives all copies of a parameter the gradient of the first."""
        if self.shared is None:
            super().spread_gradients()
        for parameter, group in self.shared or ():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.broadcast(local(parameter.grad), group=group, group_src=0)

    @contextmanager
    def summing_shared(self) -> Iterator[None]:
        """A step: afterwards all copies of a parameter have the sum of its gradients, beside what they had before.

        What is averaged over replicas is so without what it had before.
        """
        averaged = self.replicas.parameters if self.replicas else []
        earlier = {p: p.grad for p in (*self.copied(), *averaged)}
        for parameter, gradient in earlier.items():
            if gradient is not None and averaged:  # it lies in a bucket, which this step fills anew
                earlier[parameter] = gradient.clone()
            parameter.grad = None
        try:
            yield
            self.sum_shared()
        finally:
            for parameter, gradient in earlier.items():
                if gradient is not None:
                    parameter.grad = (
                        gradient if parameter.grad is None else gradient.add_(parameter.grad)
                    )

    def sum_shared(self) -> None:
        """Gives all copies of a parameter the sum of their gradients. One that is not used here has none,
        and counts 0.
        """
        if self.shared is None:
            sum_over_copies(self.copies(), self.group)
        for parameter, group in self.shared or ():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(local(parameter.grad), group=group)
