"""Ranks that hold the same stages, with other samples: gradients are averaged once in a step, stage by stage.

A stage's reduction starts when this rank has performed the last backward of it (the last W, where backwards have two
halves), and travels while the rank performs the actions of its other stages: under interleaved 1F1B the last chunk's
while the first chunks' backwards are still to come. With one stage per rank that is after the rank's own last action,
and other ranks of the pipeline may still be working. Bytes are those of one reduction of all stages together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.parameters.reducer import Reducer
from dtcourse.parameters.same_model import check_same
from dtcourse.parameters.slices import require_replicas, require_unwrapped
from dtcourse.parameters.unused import UsedParameters
from dtcourse.pipeline_parallel.actions import BACKWARD, BACKWARD_WEIGHT, Action

LAST = (
    BACKWARD,
    BACKWARD_WEIGHT,
)  # after one of these a stage's gradients have all of a micro-batch


class Replicas:
    """A Reducer for each of a rank's stages that trains something.

    stages:  the rank's, by number
    actions: the rank's list of the schedule
    group:   the ranks that hold the same stages

    Raises ValueError on all of these ranks where their stages are not the same, hold different slices, or are averaged
    by a wrapper already.
    """

    def __init__(
        self, stages: Mapping[int, nn.Module], actions: Sequence[Action], group: dist.ProcessGroup
    ) -> None:
        ends = {s: at for at, (s, kind, _) in enumerate(actions) if kind in LAST}
        names: dict[nn.Parameter, str] = {}
        last: dict[nn.Parameter, int] = {}
        for stage, module in stages.items():
            for name, parameter in module.named_parameters():
                if parameter.requires_grad:
                    names[parameter] = f"stage {stage}'s {name}"
                    # One that two stages of this rank use is complete after the later one.
                    last[parameter] = max(last.get(parameter, 0), ends[stage])
        named = [(name, parameter) for parameter, name in names.items()]
        require_replicas(named, group, "Pipeline's data_parallel")
        require_unwrapped(named, "Pipeline's data_parallel")
        check_same(named, group, "train different stages")
        self.parameters: list[torch.Tensor] = list(names)
        self.reducers: dict[int, Reducer] = {}  # by the place of the action after which it starts
        # None where all is frozen, on all ranks that hold these stages.
        for place in sorted(set(last.values())):
            of_stage = {p: name for p, name in names.items() if last[p] == place}
            # A micro-batch, or a replica, may leave some unused: None where all do, as in one process.
            used = UsedParameters(list(of_stage), find=True, static=False, group=group)
            self.reducers[place] = Reducer(of_stage, group, used=used)

    def begin(self) -> None:
        """A step: gradients of micro-batches add up on this rank."""
        for reducer in self.reducers.values():
            reducer.keep_local()

    def performed(self, place: int) -> None:
        """The action at this place of the rank's list is done: the reduction that waits for it starts."""
        if place in self.reducers:
            self.reducers[place].start_local()

    def finish(self) -> None:
        """Waits until all means have arrived."""
        for reducer in self.reducers.values():
            reducer.finish_local()
