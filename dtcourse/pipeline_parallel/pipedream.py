"""PipeDream: the pipeline is never empty, since each stage updates its weights after every one of its backwards.

    schedule = schedules.pipedream(ranks=4, micro_batches=100)
    engine = PipeDream(stages, schedule, F.cross_entropy, lambda weights: torch.optim.SGD(weights, lr=0.1))
    losses = engine.run(x, target)        # 100 updates; no optimizer.step() afterwards

A micro-batch is what it is to SGD a batch: its gradient is that of its own mean loss, and is applied at once. So the
next ones, already under way, are behind: between a micro-batch's forward and its backward on stage s of p, the stage
does p - s - 1 updates. To run the backward with weights that the forward has not seen gives the gradient of no
function. Hence

    weight stashing   a stage keeps the weights of a forward for its backward. Micro-batch i uses version i - (p - s) +
                      1 on stage s (the version is the number of updates; not less than 0), and changes version i to i +
                      1: w(i+1) = w(i) - lr grad f(w_0(i-p+1), w_1(i-p+2), ..., w_p-1(i)). Each stage's gradient is that
                      of one function of the weights, but the stages' weights are of different ages.
    vertical sync     all stages use the version that the first one had when the micro-batch entered, i - p + 1:
                      w(i+1) = w(i) - lr grad f(w(i-p+1)): SGD whose gradients are p - 1 updates late.

Memory: p - s versions of stage s's weights (the latest one and those in flight), and with vertical sync p on every
stage. Activations, bytes and messages are 1F1B's. A version is copied only when an update would overwrite what a
micro-batch in flight still needs: the last stage, without vertical sync, copies nothing. With one micro-batch in flight
it is plain SGD.

The paper sends the version's number along with the activations; here every rank reads it off the schedule.

Source: Narayanan et al. 2019, PipeDream: Generalized Pipeline Parallelism for DNN Training; Harlap et al. 2018,
1806.03377.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call

from dtcourse.events import span
from dtcourse.pipeline_parallel.actions import BACKWARD, BACKWARD_WEIGHT, FORWARD, Schedule
from dtcourse.pipeline_parallel.batch import Tensors
from dtcourse.pipeline_parallel.performer import Performer
from dtcourse.pipeline_parallel.without_flush import (
    refuse_averaged,
    refuse_shared,
    refuse_shared_out,
)
from dtcourse.torch_private import hooks_on_gradient


def versions(schedule: Schedule, stage: int, vertical_sync: bool = False) -> list[int]:
    """By micro-batch, with which version of its weights a stage computes it: how many updates they have had.

    It is the version that the stage has when the micro-batch comes; with vertical sync, that the first stage has then.
    """
    asked = 0 if vertical_sync else stage
    found, updates = [0] * schedule.micro_batches, 0
    for at, kind, i in schedule.ranks[schedule.rank_of[asked]]:
        if at == asked and kind == FORWARD:
            found[i] = updates
        elif at == asked and kind in (BACKWARD, BACKWARD_WEIGHT):
            updates += 1
    return found


class Versions:
    """The weights of one stage: the latest, which are the module's own, and older ones that micro-batches still need.

    held:   by version, the weights as tensors that a forward can use and a backward can bring gradients. The latest
            ones share the module's memory; an older one has its own, from when an update has moved the module's
            elsewhere
    uses:   by micro-batch, its version (`versions`); None: nothing is stashed, each takes whatever is there
    latest: how many updates there have been
    most:   the most versions that were held at once
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
        uses: Sequence[int] | None,
    ) -> None:
        self.module, self.uses = module, uses
        self.weights = {name: p for name, p in module.named_parameters() if p.requires_grad}
        # torch's optimizers refuse to have nothing.
        self.optimizer = optimizer(list(self.weights.values())) if self.weights else None
        self.start()

    def start(self) -> None:
        """The pipeline is empty: one version, the latest."""
        self.latest = 0
        self.held = {0: self._as_they_are()}
        self.needed = Counter(self.uses)
        self.most = 1

    def of(self, i: int) -> dict[str, torch.Tensor]:
        """The weights of a micro-batch, for its forward and for its backward."""
        return self.held[0 if self.uses is None else self.uses[i]]

    def call(self, i: int, inputs: Tensors) -> Any:
        """The stage with the weights of a micro-batch."""
        return functional_call(self.module, self.of(i), inputs)

    def update(self, i: int) -> None:
        """After a micro-batch's backward: its gradients, taken with its own version, change the latest one."""
        self.hand_gradients_over(i)
        if self.uses is not None:
            self.forget(self.uses[i])
            if self.needed[self.latest]:
                self.keep_latest()
            else:
                del self.held[self.latest]
        if self.optimizer:
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.latest += 1
        if self.uses is not None:
            self.held[self.latest] = self._as_they_are()
            self.most = max(self.most, len(self.held))

    def hand_gradients_over(self, i: int) -> None:
        """From the version that they were taken with to the module's weights, which the optimizer knows."""
        for name, weight in self.of(i).items():
            self.weights[name].grad, weight.grad = weight.grad, None

    def forget(self, version: int) -> None:
        """A micro-batch is done with a version; the last one to be so frees it, unless it is the latest."""
        self.needed[version] -= 1
        if not self.needed[version] and version != self.latest:
            del self.held[version]

    def keep_latest(self) -> None:
        """Before an update: moves the module's weights elsewhere,
        so that the optimizer leaves those held as they are.
        """
        for weight in self.weights.values():
            weight.data = weight.data.clone()

    def _as_they_are(self) -> dict[str, torch.Tensor]:
        """The module's weights, without a copy: leaves of their own for autograd, with the parameters' hooks on
        gradients (sequence parallelism's sum over ranks).

        `.data`, and not `detach()`: autograd counts changes of the two apart. Without stashing it would notice the
        update ("modified by an inplace operation"), and refuse what PipeDream's paper warns of.
        """
        leaves = {name: p.data.requires_grad_() for name, p in self.weights.items()}
        for name, parameter in self.weights.items():
            for hook in hooks_on_gradient(parameter):
                leaves[name].register_hook(hook)
        return leaves


class PipeDream(Performer):
    """Performs a schedule without flush (`schedules.pipedream`), an optimizer's step after each backward.

    stages, schedule, loss, group, recompute: as Pipeline's
    optimizer:     a stage's trained parameters -> their optimizer; called once for each stage of this rank that has any
    vertical_sync: a micro-batch uses the same version on all stages
    stash:         False leaves a backward with whatever weights there are by then: its gradients are wrong, to be seen

    Raises ScheduleError if the schedule cannot be run. Raises ValueError if ranks or stages are not those of the
    schedule, the schedule has a flush, or two stages share a parameter (of stages on other ranks `split` says it); and
    for techniques that gather weights or average gradients between a backward and its update: no version of the weights
    would have been told. Tensor and sequence parallelism do not.
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        schedule: Schedule,
        loss: Callable[[Any, Any], torch.Tensor],
        optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
        group: dist.ProcessGroup | None = None,
        *,
        vertical_sync: bool = False,
        stash: bool = True,
        recompute: bool = False,
    ) -> None:
        super().__init__(stages, schedule, loss, group, recompute=recompute)
        if schedule.flush:
            raise ValueError(
                f"{schedule.name} updates all weights at once, after the last backward: use engine.Pipeline, or a "
                "schedule with flush=False (schedules.pipedream)."
            )
        if vertical_sync and not stash:
            raise ValueError(
                "vertical_sync needs the old versions, and stash=False keeps none: leave one of the two out."
            )
        refuse_shared(self.stages)
        refuse_averaged(self.stages)
        self.versions = {
            stage: Versions(
                module, optimizer, versions(schedule, stage, vertical_sync) if stash else None
            )
            for stage, module in self.stages.items()
        }
        for one in self.versions.values():
            refuse_shared_out(one.optimizer)

    def run(self, x: Any, target: Any) -> list[float] | None:
        """Fills the pipeline, takes each micro-batch through it, drains it: one update per micro-batch, on every stage.

        x, target: all micro-batches together, as Pipeline.step's. Returns the micro-batches' mean losses, each from
        before its update, on the last stage's rank; None elsewhere.

        Raises ValueError as Pipeline.step.
        """
        for stage in self.versions.values():
            stage.start()
        with self.step_with(self.mail):
            batch = self.batch(x, target)
            batch.call = lambda stage, i, inputs: self.versions[stage].call(i, inputs)
            batch.weights = [1.0] * self.schedule.micro_batches  # each is a batch of its own
            for action in self.schedule.ranks[self.rank]:
                batch.perform(action, self.mail)
                # The stage before has its gradient on the way by now.
                if action.kind in (BACKWARD, BACKWARD_WEIGHT):
                    with span("optimizer", "compute"):
                        self.versions[action.stage].update(action.micro_batch)
        return [float(batch.losses[i]) for i in sorted(batch.losses)] if batch.targets else None
