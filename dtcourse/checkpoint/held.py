"""What this rank has of the whole model, by one walk through its modules: saving and loading go by it to their end."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from dtcourse.parameters.naming import Entry, entries
from dtcourse.parameters.owners import ModelOwners, owners_of


class Held(NamedTuple):
    """entries: this rank's parameters, tied ones once;  owners: who has the others, None where each rank has a part"""

    entries: list[Entry]
    owners: ModelOwners | None

    @classmethod
    def of(cls, model: nn.Module) -> Held:
        """What a model has now: it must stay as it is while this is used."""
        return cls(entries(model), owners_of(model))

    def state_names(self) -> dict[torch.Tensor, str]:
        """What the optimizer's state of each parameter is called, on all ranks that have it."""
        first = self.owners.first_name if self.owners else str
        return {entry.parameter: first(entry.names[0]) for entry in self.entries}

    def by_name(self) -> dict[str, Entry]:
        """Each parameter by all names that a state of it may have."""
        names = self.state_names()
        return {n: e for e in self.entries for n in (*e.names, names[e.parameter])}
