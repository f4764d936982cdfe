"""Stages of a pipeline that move: layers go to the ranks that are fast enough for them, while the model trains.

    costs = layer_costs(layers, x, loss=loss_of, on=EmulatedDevice(flops=1))   # FLOPs, the same on all ranks
    moving = MovingStages(layers, one_f_one_b(4, 8), loss, costs)
    optimizer = torch.optim.AdamW(moving.module.parameters())
    for x, y in batches:
        optimizer.zero_grad()
        moving.step(x, y)                      # as Pipeline.step
        optimizer.step()
        moving.after(optimizer)                # on all ranks: layers may have moved, with all that belongs to them

A pipeline is as fast as its busiest rank. How fast a rank is, it measures by its own forwards and backwards, without
the messages between them: seconds per unit of the layers' costs. All ranks gather these, cut the layers anew within
each rank's memory (moving_cuts.py), and move if that gains enough (heterogeneous/hysteresis.py). Where costs are wrong
a move may gain nothing; then it is undone.

A layer takes along its parameters and what is noted on them, gradients, buffers and optimizer states, so training goes
on, and equals one process. Where it is not, a layer is on the meta device: its structure without memory. Not moved are
random numbers (dropout draws the new rank's, as in every pipeline), attributes of modules, and what others keep of
parameters (averages of weights, lists of one's own).

A move costs one message for each tensor of each layer that moves, from its old rank to its new one: for Adam three
times the layer's bytes. Source: PipeDream's balance (Narayanan et al. 2019), made anew as in Varuna (Athlur et al.
2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.collectives import p2p
from dtcourse.heterogeneous import Capability, Hysteresis, Meter, of_all_ranks
from dtcourse.hybrid import moving_checks as checks
from dtcourse.hybrid import moving_layers as under_way
from dtcourse.hybrid.moving_cuts import Cuts
from dtcourse.hybrid.timed_pipeline import TimedPipeline
from dtcourse.parameters.agreement import check_agreed, raise_on_all_ranks
from dtcourse.pipeline_parallel import Schedule, split
from dtcourse.pipeline_parallel.batch import samples
from dtcourse.pipeline_parallel.layer_costs import LayerCost
from dtcourse.plural import plural

UNMEASURED = Capability(float("nan"), 0.0, -1)
ALIKE = "Each rank would cut other stages: give all of them the same"


class MovingStages:
    """A Pipeline whose cuts follow the ranks' measured speeds.

    layers:    of the whole model, on every rank; no two share a parameter or a buffer. From here on they are this
               object's: those of other ranks are on the meta device. Their state is in parameters, buffers and
               get_extra_state: other attributes stay behind
    schedule, loss, group, weigh, recompute: as Pipeline's. There is no data_parallel: each replica would cut for itself
    costs:     of each layer, forward and backward: what layer_costs gives, or numbers; default: all alike
    ranges:    the first cuts; default: for ranks that are alike
    layer_bytes, memory: what each layer takes in training (parameters, gradients, optimizer states, activations of the
               micro-batches under way), and what each rank has; default: there is enough
    threshold, patience, window, settle: as heterogeneous.Balance's: when to move

    pipeline, module: of now; a move makes others, so ask for them anew (a loss scaler's model=, a checkpoint's)
    ranges, moved: the layers of each stage now; after which steps layers moved, from 0 on

    Raises ValueError for what does not move (layers with tensors in common or cut by another technique, parameters
    with hooks), costs that are not above 0, cuts that do not fit, settings that differ between ranks, and as `split`
    and Pipeline do.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        schedule: Schedule,
        loss: Callable[[Any, Any], torch.Tensor],
        costs: Sequence[float | LayerCost] | None = None,
        ranges: Sequence[range] | None = None,
        group: dist.ProcessGroup | None = None,
        *,
        weigh: Callable[[Any], float] = samples,
        recompute: bool = False,
        layer_bytes: Sequence[float] | None = None,
        memory: Sequence[float] | None = None,
        threshold: float = 0.05,
        patience: int = 2,
        window: int = 7,
        settle: int = 3,
    ) -> None:
        self.layers, self.schedule, self.group = list(layers), schedule, group
        costs = [1.0] * len(self.layers) if costs is None else costs
        self.costs = _numbers(costs, len(self.layers))
        settings: dict[str, object] = {"costs": self.costs, "ranges": ranges}
        settings |= {"layer_bytes": layer_bytes, "memory": memory, "threshold": threshold}
        settings |= {"patience": patience, "window": window, "settle": settle}
        check_agreed(settings, group, ALIKE)
        raise_on_all_ranks(lambda: checks.refuse_what_cannot_move(self.layers), group)
        self.cuts = Cuts(self.costs, schedule.rank_of, layer_bytes, memory)
        alike = [1.0] * schedule.num_ranks
        self.ranges = self.cuts.best(alike) if ranges is None else list(ranges)
        self._make = lambda stages: TimedPipeline(
            stages, schedule, loss, group, weigh=weigh, recompute=recompute
        )
        self.pipeline = self._cut(self.ranges)
        self.cuts.require_fit(self.ranges)
        for layer, owner in zip(self.layers, self.owners(self.ranges), strict=True):
            if owner != self.pipeline.rank:
                under_way.leave_structure(layer)
        self.hysteresis, self.meter = Hysteresis(threshold, patience), Meter(window)
        self.settle, self.steps, self.moved = settle, 0, list[int]()
        self._earlier = self.ranges  # before the last move

    @property
    def module(self) -> nn.Module:
        """This rank's stages: for the optimizer, states, norms. Another one after a move."""
        return self.pipeline.module

    def step(
        self, x: Any, target: Any, scale: Callable[[torch.Tensor], torch.Tensor] | None = None
    ) -> torch.Tensor | None:
        """Forward and backward of one batch: Pipeline.step."""
        return self.pipeline.step(x, target, scale)

    def after(self, optimizer: torch.optim.Optimizer) -> bool:
        """A step is over. Whether layers have moved; all ranks call it, and hear the same.

        optimizer: of this rank's parameters that are trained, in one group; its states move along

        Raises ValueError on all ranks, before anything moves: at the first call where the optimizer is another one,
        and where a rank's stages take no time.
        """
        if not self.steps:
            raise_on_all_ranks(lambda: checks.check_optimizer(optimizer, self.module), self.group)
        known = of_all_ranks(self._measured(), self.group)
        if lacking := [rank for rank, one in enumerate(known) if one.number < 0]:
            raise ValueError(
                f"the stages of rank {lacking[0]} took no time in this step: is its emulated device without limits?"
            )
        step, self.steps = self.steps, self.steps + 1
        if any(one.number < self.settle for one in known):
            return False
        seconds = [one.seconds for one in known]
        now = self.cuts.busy(self.ranges, seconds)
        if self.hysteresis.goes_back(now):
            better = self._earlier
        else:
            better = self.cuts.best(seconds, self.ranges)
            if not self.hysteresis.moves(now, self.cuts.busy(better, seconds), known):
                return False
        self.move(better, optimizer)
        self.moved.append(step)
        return True

    def move(self, ranges: Sequence[range], optimizer: torch.optim.Optimizer) -> None:
        """Cuts the model so from here on: all ranks call it with the same ranges, between two steps.

        Raises ValueError on all ranks, and nothing has moved, for what `after` refuses, for other ranges than another
        rank's or such as do not fit, for states that cannot be sent, and where a rank has no memory for what comes.
        """
        ranges = list(ranges)
        check_agreed({"ranges": ranges}, self.group, ALIKE)
        raise_on_all_ranks(lambda: self._check(ranges, optimizer), self.group)
        frozen = set(optimizer.param_groups[0]["params"]) == set(self.module.parameters())
        self._send(self.owners(ranges), optimizer)
        self._earlier, self.ranges = self.ranges, ranges
        self.pipeline = self._cut(ranges)
        checks.take_parameters(optimizer, self.module, frozen)
        self.meter.clear()

    def owners(self, ranges: Sequence[range]) -> list[int]:
        """By layer, the rank that has it under these cuts."""
        stages = [stage for stage, chosen in enumerate(ranges) for _ in chosen]
        return [self.schedule.rank_of[stage] for stage in stages]

    def slowest(self, ranges: Sequence[range], speeds: Sequence[float]) -> float:
        """Seconds that the busiest rank works on one micro-batch, under these cuts. speeds: of each rank."""
        return max(self.cuts.busy(ranges, [1 / speed for speed in speeds]))

    def _measured(self) -> Capability:
        seconds, i = self.pipeline.seconds(), self.pipeline.rank
        if not seconds > 0:
            return UNMEASURED
        work = sum(self.cuts.cost(self.ranges[stage]) for stage in self.schedule.stages_of(i))
        self.meter.add(seconds, work * self.schedule.micro_batches)
        return self.meter.capability()

    def _send(self, owners: Sequence[int], optimizer: torch.optim.Optimizer) -> None:
        """All layers to their new owners, in one order on all ranks, so that nobody waits in a circle."""
        me, where = self.pipeline.rank, self.pipeline.mail.device
        ways = [
            (layer, before, after)
            for layer, before, after in zip(
                self.layers, self.owners(self.ranges), owners, strict=True
            )
            if before != after and me in (before, after)
        ]
        packed = raise_on_all_ranks(
            lambda: [
                under_way.pack(layer, optimizer) if me == before else None
                for layer, before, _ in ways
            ],
            self.group,
        )
        headers = []
        for (_, before, after), mine in zip(ways, packed, strict=True):
            if mine is None:
                headers.append(under_way.receive_header(before, self.group))
            else:
                under_way.send_header(mine, after, self.group)
        rooms = raise_on_all_ranks(
            lambda: [under_way.make_room(header, where) for header in headers], self.group
        )
        coming = iter(rooms)
        for (layer, before, after), mine in zip(ways, packed, strict=True):
            if mine is None:
                room = next(coming)
                under_way.receive_tensors(room, before, self.group)
                under_way.unpack(layer, room, optimizer)
            else:
                under_way.send_tensors(mine, after, self.group)
                under_way.leave(layer, optimizer)

    def _cut(self, ranges: Sequence[range]) -> TimedPipeline:
        made = self._make(split(self.layers, ranges, self.schedule, p2p.rank(self.group)))
        made.computed = []
        return made

    def _check(self, ranges: Sequence[range], optimizer: torch.optim.Optimizer) -> None:
        split(self.layers, ranges, self.schedule, self.pipeline.rank)
        self.cuts.require_fit(ranges)
        checks.check_optimizer(optimizer, self.module)
        checks.refuse_hooks(self.module.named_parameters())


def _numbers(costs: Sequence[float | LayerCost], layers: int) -> list[float]:
    """What each layer costs, all together."""
    numbers = [one.total if isinstance(one, LayerCost) else one for one in costs]
    if len(numbers) != layers or not all(0 < one < math.inf for one in numbers):
        raise ValueError(f"{plural(layers, 'layer')} need as many costs above 0; got {numbers}")
    return numbers
