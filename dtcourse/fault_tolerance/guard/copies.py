"""Copies in memory of what a step changes, and putting them back: each rank of what it holds itself, without a message.

    copies = Copies([Tensors(model), States(optimizer), schedule, RandomStates()])
    before = copies.save()
    copies.load(before)                # as often as one likes: what is loaded is a copy again

Memory: for a model under Adam three times its parameters, of this rank's shard where they are sharded. The position in
the data is not among it: who goes back meets other batches.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtcourse import nested
from dtcourse.parameters.placement import local


class Stateful(Protocol):
    """An optimizer, a schedule, a scaler, RandomStates."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any) -> object: ...


class Tensors:
    """This rank's pieces of a model's parameters, and its buffers, in state_dict's shape, however they are sharded.

    parameters: False for the buffers alone: what a forward changes (the statistics of batch normalisation)
    """

    def __init__(self, model: nn.Module, parameters: bool = True) -> None:
        self.model, self.parameters = model, parameters

    def _all(self) -> list[Tensor]:
        parameters: Iterable[Tensor] = self.model.parameters() if self.parameters else ()
        return [local(tensor) for tensor in (*parameters, *self.model.buffers())]

    def state_dict(self) -> dict[str, Any]:
        """The tensors themselves, in the model's order."""
        return {"tensors": self._all()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Writes into the model's own tensors: who holds one (an optimizer, a wrapper) holds it still."""
        with torch.no_grad():
            for mine, theirs in zip(self._all(), state["tensors"], strict=True):
                mine.copy_(theirs)


class States:
    """What an optimizer has on this rank, in state_dict's shape: of ZeRO the states of the rank's own parameters.

    state_dict() of an optimizer that is sharded gathers the whole, on one rank. Here nothing is sent.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        """The states by their parameters' numbers, and the groups' options."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        state = self.optimizer.state
        return {
            "state": {n: state[p] for n, p in enumerate(parameters) if p in state},
            "options": [
                {name: value for name, value in group.items() if name != "params"}
                for group in self.optimizer.param_groups
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Into the optimizer's own dictionaries, which a wrapper may hold too."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.optimizer.state.clear()
        self.optimizer.state.update({parameters[n]: own for n, own in state["state"].items()})
        for group, options in zip(self.optimizer.param_groups, state["options"], strict=True):
            group.update(options)


def has_state_dict(state: Any) -> bool:
    """Whether it can be copied and put back as it is."""
    return hasattr(state, "state_dict") and hasattr(state, "load_state_dict")


class Attributes:
    """What an object without a state_dict keeps, in state_dict's shape: PyTorch's PowerSGDState, a dict or a list.

    of: the object; the groups of ranks that it knows stay as they are
    """

    def __init__(self, of: Any) -> None:
        self.of = of

    def state_dict(self) -> dict[str, Any]:
        """The things themselves, by name."""
        if isinstance(self.of, dict | list):
            return {"items": self.of.copy()}
        found = nested.attributes_of(self.of)
        return {n: one for n, one in found.items() if not isinstance(one, dist.ProcessGroup)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Into the very object, which a hook holds too."""
        if isinstance(self.of, dict | list):
            self.of.clear()
            (self.of.update if isinstance(self.of, dict) else self.of.extend)(state["items"])
            return
        for name in self.state_dict().keys() - state.keys():
            delattr(self.of, name)
        for name, value in state.items():
            setattr(self.of, name, value)


class Copies:
    """Several states, copied and put back together.

    parts: Tensors(model), States(optimizer), the learning rate's schedule, a scaler, RandomStates
    """

    def __init__(self, parts: Sequence[Stateful]) -> None:
        self.parts = list(parts)

    def has(self, state: Any) -> bool:
        """Whether this very state is among them."""
        known = (part.of if isinstance(part, Attributes) else part for part in self.parts)
        return any(one is state for one in known)

    def save(self) -> list[Any]:
        """Copies of all states."""
        return [_copied(part.state_dict()) for part in self.parts]

    def load(self, states: Sequence[Any]) -> None:
        """Puts them back. The copy stays one: torch's optimizers go on with the very tensors that they are given."""
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(_copied(state))


def _copied(state: Any) -> Any:
    with torch.no_grad():
        return copy.deepcopy(state)
