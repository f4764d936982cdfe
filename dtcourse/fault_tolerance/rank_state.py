"""What one rank keeps of a run, as one state in memory: its shards, or its replica, and what it has of its own.

    state = RankState(model, optimizer, shared={"data": loader}, own={"random": RandomStates()}, layout="fully_shard")
    state.state_dict()            # of this rank alone: nothing is gathered, nothing is sent

Buffers that differ from rank to rank (a batch norm's statistics under full sharding) stay each rank's own.

It goes back to where it was: to the same rank of as many ranks, cut alike, or to another process in its place. Another
number of ranks needs other parts: that is what a checkpoint is for (checkpoint/).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from dtcourse import nested
from dtcourse.checkpoint.held import Held
from dtcourse.checkpoint.state import as_parameter
from dtcourse.parameters.naming import buffers
from dtcourse.parameters.placement import local

Tensors = dict[str, torch.Tensor]


class RankState:
    """A model and its optimizer, however they are cut, and by name whatever else has a state. Between two steps.

    shared, own: what is the same on all ranks, and what is not: here both are this rank's own
    layout:      how the model is cut, in any words: a part is given to a run of the same layout alone
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        shared: Mapping[str, Any] | None = None,
        own: Mapping[str, Any] | None = None,
        layout: str = "",
    ) -> None:
        self.model, self.optimizer, self.layout = model, optimizer, layout
        self.others = {**(shared or {}), **(own or {})}

    def state_dict(self) -> dict[str, Any]:
        """All of it, as it lies in memory: who keeps it makes a copy."""
        held = Held.of(self.model)
        options = [
            {name: value for name, value in group.items() if name != "params"}
            for group in self.optimizer.param_groups
        ]
        return {
            "layout": self.layout,
            "parameters": {entry.names[0]: local(entry.parameter) for entry in held.entries},
            "buffers": buffers(self.model),
            "optimizer": {
                entry.names[0]: nested.map_tensors(local, dict(slots))
                for entry in held.entries
                if (slots := self.optimizer.state.get(entry.parameter))
            },
            "options": options,
            "others": {name: part.state_dict() for name, part in self.others.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes it. Its tensors belong to this run from now on. ValueError, and no change, for other parts."""
        held = Held.of(self.model)
        parameters = {entry.names[0]: entry.parameter for entry in held.entries}
        here: Tensors = {name: local(p) for name, p in parameters.items()}
        self._check(state, here)
        with torch.no_grad():
            for name, value in state["parameters"].items():
                here[name].copy_(value)
            for name, buffer in buffers(self.model).items():
                buffer.copy_(state["buffers"][name])
        self.optimizer.state.clear()
        for name, slots in state["optimizer"].items():
            self.optimizer.state[parameters[name]] = nested.map_tensors(
                partial(as_parameter, parameters[name]), slots
            )
        for group, options in zip(self.optimizer.param_groups, state["options"], strict=True):
            group.update(options)
        if hasattr(self.optimizer, "states_changed"):
            self.optimizer.states_changed()
        for name, part in self.others.items():
            part.load_state_dict(state["others"][name])

    def _check(self, state: Mapping[str, Any], here: Tensors) -> None:
        theirs = {name: list(value.shape) for name, value in state["parameters"].items()}
        mine = {name: list(value.shape) for name, value in here.items()}
        said: list[tuple[str, Any, Any]] = [
            ("the layout", state["layout"], self.layout),
            ("a part", theirs, mine),
            ("buffers", sorted(state["buffers"]), sorted(buffers(self.model))),
            ("parameter groups", len(state["options"]), len(self.optimizer.param_groups)),
            ("other states", sorted(state["others"]), sorted(self.others)),
        ]
        for what, there, here_now in said:
            if there == here_now:
                continue
            if isinstance(there, dict):  # of many parameters, the first that differs
                names = dict.fromkeys([*there, *here_now])
                name = next(n for n in names if there.get(n) != here_now.get(n))
                what, there, here_now = name, there.get(name, "not"), here_now.get(name, "not")
            raise ValueError(
                f"the copy is of another run: {what} is {there} there and {here_now} here. Nothing was loaded"
            )
