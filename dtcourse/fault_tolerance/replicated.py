"""What a replica has in memory, as one state: of a run whose ranks all have the same.

    state = Replicated(model, optimizer, shared={"data": sampler, "draws": model.states})
    state.state_dict()            # the same on all ranks: one rank's is enough for any number of others
    state.load_state_dict(...)

Of a model that is cut, this is no replica: give PeerCopies what each rank keeps, or Elastic a state_dict that gathers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.parameters.plain_replica import require_whole_here
from dtcourse.parameters.replicas import Group


class Replicated:
    """A model, its optimizer, and by name whatever else has a state.

    shared: what has the same state on all ranks: a schedule, a sampler, VirtualRanks' states
    own:    what has another one on each, and says how to give it out anew: load_elsewhere (RandomStates)

    Where a rank's number may change, nobody's own state fits: each rank gets one that follows from the sender's.
    Raises ValueError for a model of which a rank keeps a part, and for an own state that cannot be given out.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        shared: Mapping[str, Any] | None = None,
        own: Mapping[str, Any] | None = None,
        group: Group = None,
    ) -> None:
        _require_replica(model, optimizer)
        self.model, self.optimizer, self.group = model, optimizer, group
        self.shared, self.own = dict(shared or {}), dict(own or {})
        for name, part in self.own.items():
            if not hasattr(part, "load_elsewhere"):
                raise ValueError(
                    f"{name} is a state of each rank, and {type(part).__name__} does not say how to give it to others "
                    "(load_elsewhere)"
                )

    def state_dict(self) -> dict[str, Any]:
        """All of it, as it lies in memory: who keeps it makes a copy. Every rank calls it, as a part may ask others."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "shared": {name: part.state_dict() for name, part in self.shared.items()},
            "own": {name: part.state_dict() for name, part in self.own.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes what a rank has given. Its tensors belong to this run from now on."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for name, part in self.shared.items():
            part.load_state_dict(state["shared"][name])
        for name, part in self.own.items():
            part.load_elsewhere([state["own"][name]], dist.get_rank(self.group))


def _require_replica(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    instead = (
        "One rank's state is not everybody's: keep copies of parts with PeerCopies, or take a checkpoint to another "
        "number of ranks"
    )
    require_whole_here(model, "Replicated", instead)
    if hasattr(optimizer, "owners"):
        raise ValueError(
            f"{type(optimizer).__name__} keeps each state on one rank alone, so no rank has everybody's. {instead}"
        )
