"""A model of which each rank of a group has some parameters, and none of the others: a pipeline's stages.

Other cuts leave every rank a piece of each parameter, and ride on it (placement.py). Here a parameter is on its owner,
whole or cut further over the owner's neighbours. A rank that does not own it has nothing to ride on, and may own none
at all. So it is the module of what a rank owns that says so, by an attribute:

    module.owners = ModelOwners(group, later, tied)

Whatever the ranks do with their own parameters, states, gradients and norms, comes first; then the owners tell each
other, over the group. A tied parameter that two ranks hold has the same value and gradient on both, and counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtcourse import device
from dtcourse.collectives import decisions
from dtcourse.parameters.cuts import Group


@dataclass(frozen=True)
class ModelOwners:
    """Who has which parameters of the whole model.

    group: the ranks that have the model between them
    later: gives this rank's parameters that an earlier rank of the group holds as well
    tied:  for each of those, on whichever rank, its names in the whole model, in the model's order
    spread: gives those of `later` the gradients that the earlier ranks have. A collective
    """

    group: Group
    later: Callable[[], Collection[nn.Parameter]]
    tied: Sequence[Sequence[str]] = ()
    spread: Callable[[], None] = lambda: None

    def everyones(self, mine: Mapping[str, Any], on_cpu: bool = False) -> Iterator[tuple[str, Any]]:
        """What the owners have, by name, on every rank: tensors as they are there, anything else pickled.

        A collective: of names and shapes, and then a broadcast of each tensor.
        Raises ValueError, on all ranks, where two of them have something under one name.
        """
        rank = dist.get_rank(self.group)
        for owner, theirs in self._forms(mine):
            for name, form in theirs.items():
                if not isinstance(form, _Form):
                    yield name, form
                    continue
                if owner == rank:
                    sent = mine[name].to(device.current()).contiguous()
                else:
                    sent = torch.empty(form.shape, dtype=form.dtype, device=device.current())
                dist.broadcast(sent, group=self.group, group_src=owner)
                if owner == rank:
                    yield name, mine[name]
                else:
                    yield name, sent.cpu() if on_cpu else sent

    def said_by_all(self, mine: Any) -> list[Any]:
        """What each rank says, pickled. A collective."""
        return decisions.said_by_all(mine, self.group)

    def names_of_others(self, mine: Collection[str]) -> set[str]:
        """What other ranks have, and this one does not. A collective."""
        return {name for theirs in self.said_by_all(list(mine)) for name in theirs} - set(mine)

    def first_name(self, name: str) -> str:
        """The first of the names that a parameter has on all ranks."""
        return next((names[0] for names in self.tied if name in names), name)

    def _forms(self, mine: Mapping[str, Any]) -> list[tuple[int, dict[str, Any]]]:
        forms = {
            name: _Form(value.shape, value.dtype) if isinstance(value, Tensor) else value
            for name, value in mine.items()
        }
        everyone = self.said_by_all(forms)
        owner_of: dict[str, int] = {}
        for owner, theirs in enumerate(everyone):
            for name in theirs:
                if owner_of.setdefault(name, owner) != owner:
                    raise ValueError(
                        f"ranks {owner_of[name]} and {owner} of the group both have a {name} of their own: a module "
                        "that is in two stages. Put it into one stage, or give each stage one of its own"
                    )
        return list(enumerate(everyone))


def note_copied(parameters: Iterable[nn.Parameter]) -> None:
    """Notes on parameters that other ranks hold copies of them, for those who are given parameters only."""
    for parameter in parameters:
        parameter.copied = True  # type: ignore[attr-defined]


def is_copied(parameter: Tensor) -> bool:
    """Whether another rank holds a copy of it, as part of another stage."""
    return getattr(parameter, "copied", False)


@dataclass(frozen=True)
class _Form:
    shape: torch.Size
    dtype: torch.dtype


def owners_of(model: nn.Module) -> ModelOwners | None:
    """Who has the rest of a model; None where every rank has a part of everything."""
    owners: ModelOwners | None = getattr(model, "owners", None)
    return owners
