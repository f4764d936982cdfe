"""Stages of a pipeline that move: layers go to the ranks that are fast enough for them, while the model trains.

    moving = MovingStages(layers_of(model), one_f_one_b(4, 8), loss, costs)
    optimizer = torch.optim.AdamW(moving.module.parameters())
    for x, y in batches:
        optimizer.zero_grad()
        moving.step(x, y)                      # as Pipeline.step
        optimizer.step()
        moving.after(optimizer)                # on all ranks: layers may have moved, with all that belongs to them

A pipeline is as fast as its slowest stage. How fast a rank is, it measures by its own forwards, which wait for nobody:
seconds per unit of the layers' costs. All ranks gather these, cut the layers anew in proportion to the speeds
(pipeline_parallel/balance.py), and move if that gains enough (heterogeneous/balance.py, Hysteresis). A layer takes
along its parameters, gradients, buffers and optimizer states, so training goes on as if nothing had happened, and
equals one process. Where it is not, a layer is on the meta device: its structure without memory.

A move costs one message for each tensor of each layer that moves, from its old rank to its new one: for Adam three
times the layer's bytes. Source: PipeDream's balance (Narayanan et al. 2019), made anew as in Varuna (Athlur et al.
2022).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.collectives import p2p
from dtcourse.heterogeneous import Hysteresis, Meter, of_all_ranks
from dtcourse.hybrid.moving_layers import leave_structure, receive_layer, send_layer
from dtcourse.parameters.agreement import raise_on_all_ranks
from dtcourse.parameters.slices import require_whole
from dtcourse.pipeline_parallel import Pipeline, Schedule, balance, split
from dtcourse.pipeline_parallel.batch import Tensors, samples
from dtcourse.pipeline_parallel.stages import tied_parameters
from dtcourse.plural import plural
from dtcourse.streams import Moment


class TimedPipeline(Pipeline):
    """A Pipeline that notes when each forward of its stages began and ended."""

    forwards: list[tuple[int, Moment, Moment]]

    def call(self, stage: int, i: int, inputs: Tensors) -> Any:
        """What a stage makes of a micro-batch."""
        began = Moment(self.mail.device)
        made = super().call(stage, i, inputs)
        self.forwards.append((stage, began, Moment(self.mail.device)))
        return made


class MovingStages:
    """A Pipeline whose cuts follow the ranks' measured speeds.

    layers:    of the whole model, on every rank; no two share a parameter or a buffer. Their state is in
               parameters, buffers and get_extra_state: other attributes stay behind
    schedule, loss, group, weigh, recompute: as Pipeline's
    costs:     of each layer, in any unit (layer_costs; FLOPs); default: all alike
    ranges:    the first cuts; default: for ranks that are alike
    threshold, patience, window: as heterogeneous.Balance's: when to move

    pipeline, module: of now; a move makes others, so ask for them anew (a loss scaler's model=, a checkpoint's)
    ranges:    the layers of each stage
    moved:     after which steps layers moved, from 0 on

    Raises ValueError for tied weights and shared buffers, which would have to be tied anew, for layers that another
    technique has cut, for costs that are not above 0, and as `split` and Pipeline do.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        schedule: Schedule,
        loss: Callable[[Any, Any], torch.Tensor],
        costs: Sequence[float] | None = None,
        ranges: Sequence[range] | None = None,
        group: dist.ProcessGroup | None = None,
        *,
        weigh: Callable[[Any], float] = samples,
        recompute: bool = False,
        threshold: float = 0.05,
        patience: int = 2,
        window: int = 7,
    ) -> None:
        self.layers, self.schedule, self.group = list(layers), schedule, group
        self.costs = [1.0] * len(self.layers) if costs is None else list(costs)
        if len(self.costs) != len(self.layers) or not all(cost > 0 for cost in self.costs):
            raise ValueError(
                f"{plural(len(self.layers), 'layer')} need as many costs above 0; got {self.costs}"
            )
        self._refuse_what_cannot_move()
        self._make = lambda stages: TimedPipeline(
            stages, schedule, loss, group, weigh=weigh, recompute=recompute
        )
        first = balance(self.costs, schedule.num_stages) if ranges is None else list(ranges)
        self.pipeline = self._cut(first)
        self.ranges = first
        for layer, owner in zip(self.layers, self.owners(first), strict=True):
            if owner != self.pipeline.rank:
                leave_structure(layer)
        self.hysteresis, self.meter = Hysteresis(threshold, patience), Meter(window)
        self.steps, self.moved = 0, list[int]()

    @property
    def module(self) -> nn.Module:
        """This rank's stages: for the optimizer, states, norms. Another one after a move."""
        return self.pipeline.module

    def step(
        self, x: Any, target: Any, scale: Callable[[torch.Tensor], torch.Tensor] | None = None
    ) -> torch.Tensor | None:
        """Forward and backward of one batch: Pipeline.step."""
        self.pipeline.forwards = []
        return self.pipeline.step(x, target, scale)

    def after(self, optimizer: torch.optim.Optimizer) -> bool:
        """A step is over. Whether layers have moved; all ranks call it, and hear the same.

        optimizer: of this rank's parameters that are trained, in one group; its states move along

        Raises ValueError on all ranks, before anything moves, where that is not so.
        """
        seconds = sum(ended.seconds_since(began) for _, began, ended in self.pipeline.forwards)
        work = sum(self._cost(self.ranges[stage]) for stage, _, _ in self.pipeline.forwards)
        if seconds > 0:  # else no emulated device limits it
            self.meter.add(seconds, work)
        known = of_all_ranks(self.meter.capability(), self.group)
        step, self.steps = self.steps, self.steps + 1
        if not all(one.number for one in known):
            return False
        speeds = [one.speed for one in known]
        by_stage = [speeds[rank] for rank in self.schedule.rank_of]
        better = balance(self.costs, self.schedule.num_stages, by_stage)
        now, then = self.slowest(self.ranges, speeds), self.slowest(better, speeds)
        if not self.hysteresis.moves(now, then, known):
            return False
        self.move(better, optimizer)
        self.moved.append(step)
        return True

    def move(self, ranges: Sequence[range], optimizer: torch.optim.Optimizer) -> None:
        """Cuts the model so from here on: all ranks call it with the same ranges, between two steps."""
        raise_on_all_ranks(lambda: self._check(ranges, optimizer), self.group)
        me, where = self.pipeline.rank, self.pipeline.mail.device
        owners = zip(self.layers, self.owners(self.ranges), self.owners(ranges), strict=True)
        for (
            layer,
            before,
            after,
        ) in owners:  # in one order on all ranks, so that nobody waits in a circle
            if before == after:
                continue
            if me == before:
                send_layer(layer, optimizer, after, self.group)
            elif me == after:
                receive_layer(layer, optimizer, before, self.group, where)
        self.pipeline = self._cut(ranges)
        self.ranges = list(ranges)
        trained = [(n, p) for n, p in self.module.named_parameters() if p.requires_grad]
        of_all = optimizer.param_groups[0]
        of_all["params"] = [parameter for _, parameter in trained]
        if "param_names" in of_all:
            of_all["param_names"] = [name for name, _ in trained]
        self.meter.clear()

    def owners(self, ranges: Sequence[range]) -> list[int]:
        """By layer, the rank that has it under these cuts."""
        stages = [stage for stage, chosen in enumerate(ranges) for _ in chosen]
        return [self.schedule.rank_of[stage] for stage in stages]

    def slowest(self, ranges: Sequence[range], speeds: Sequence[float]) -> float:
        """Seconds that the slowest rank works on one micro-batch, under these cuts. speeds: of each rank."""
        busy = [0.0] * len(speeds)
        for rank, chosen in zip(self.schedule.rank_of, ranges, strict=True):
            busy[rank] += self._cost(chosen) / speeds[rank]
        return max(busy)

    def _cost(self, chosen: range) -> float:
        return sum(self.costs[i] for i in chosen)

    def _cut(self, ranges: Sequence[range]) -> TimedPipeline:
        made = self._make(split(self.layers, ranges, self.schedule, p2p.rank(self.group)))
        made.forwards = []
        return made

    def _refuse_what_cannot_move(self) -> None:
        each = [range(i, i + 1) for i in range(len(self.layers))]
        if tied := tied_parameters(self.layers, each):
            names = " and ".join(dict.fromkeys(tied[0].in_whole.values()))
            raise ValueError(
                f"{names} are one parameter, which layers on two ranks would hold copies of: stages move where no two "
                "layers share weights. Untie them, or use Pipeline with cuts that stay (balance with speeds)"
            )
        for i, layer in enumerate(self.layers):
            places = Counter(
                id(one)
                for module in layer.modules()
                for named in (module.named_parameters, module.named_buffers)
                for _, one in named(recurse=False, remove_duplicate=False)
            )
            if places and max(places.values()) > 1:
                raise ValueError(
                    f"layer {i} has one tensor in two places, and they would be two where it arrives: untie them, or "
                    "use Pipeline with cuts that stay"
                )
        first: dict[int, int] = {}
        for i, layer in enumerate(self.layers):
            for one in layer.buffers():
                if first.setdefault(id(one), i) != i:
                    raise ValueError(
                        f"layers {first[id(one)]} and {i} have a buffer in common, of which two ranks would hold "
                        "copies: give each its own, or use Pipeline with cuts that stay"
                    )
        named = [(n, p) for layer in self.layers for n, p in layer.named_parameters()]
        why = "a slice of a layer does not move by itself"
        require_whole(named, "MovingStages", why, "Use Pipeline with cuts that stay")

    def _check(self, ranges: Sequence[range], optimizer: torch.optim.Optimizer) -> None:
        split(self.layers, ranges, self.schedule, self.pipeline.rank)
        if len(optimizer.param_groups) != 1:
            raise ValueError(
                f"the optimizer has {plural(len(optimizer.param_groups), 'group')} of parameters, and a layer that "
                "comes would not know its own: stages move with one group"
            )
        mine = {p for p in self.module.parameters() if p.requires_grad}
        if mine != set(optimizer.param_groups[0]["params"]):
            raise ValueError(
                "the optimizer is not of this rank's trained parameters: make it of moving.module.parameters(), once, "
                "before the first step"
            )
