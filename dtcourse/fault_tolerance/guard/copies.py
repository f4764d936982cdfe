"""Copies in memory of what a step changes, and putting them back: each rank of what it holds itself, without a message.

    copies = Copies([Tensors(model), States(optimizer), schedule, RandomStates()])
    before = copies.save()
    copies.load(before)                # as often as one likes: what is loaded is a copy again

Memory: for a model under Adam three times its parameters, of this rank's shard where they are sharded. The position in
the data is not among it: who goes back meets other batches.
"""

from __future__ import annotations

import copy
import inspect
import types
from collections import deque
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

    of: the object: a container that can be emptied, or one with attributes of its own, frozen or not

    Raises ValueError for what could not be put back into the very object, such as a tensor or a tuple.
    """

    def __init__(self, of: Any) -> None:
        if has_state_dict(of):
            raise ValueError(
                f"a {type(of).__name__} has a state_dict of its own: pass it without Attributes"
            )
        if not can_be_put_back(of):
            raise ValueError(
                f"what a {type(of).__name__} holds cannot be put back into the very object: {INSTEAD}"
            )
        self.of = of

    def state_dict(self) -> dict[str, Any]:
        """The things themselves: a container's items, and attributes by name."""
        items: Any = None
        if isinstance(self.of, _CONTAINERS):
            items = dict(self.of) if isinstance(self.of, dict) else list(self.of)
        return {"items": items, "attributes": nested.attributes_of(self.of)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Into the very object, which a hook holds too."""
        if isinstance(self.of, _CONTAINERS):
            self.of.clear()
            if isinstance(self.of, list | deque):
                self.of.extend(state["items"])
            else:
                self.of.update(state["items"])
        attributes = state["attributes"]
        # Past the object's own __setattr__: a frozen dataclass has one that refuses.
        for name in nested.attributes_of(self.of).keys() - attributes.keys():
            object.__delattr__(self.of, name)
        for name, value in attributes.items():
            slot = inspect.getattr_static(type(self.of), name, None)
            if isinstance(slot, types.MemberDescriptorType):
                slot.__set__(self.of, value)
            else:
                vars(self.of)[name] = value


# Python's own that are emptied and filled again.
_CONTAINERS = (dict, list, set, deque)
INSTEAD = "let the hook keep it in a dict, a list or an object of a class of yours, and pass Attributes of that"


def can_be_put_back(of: Any) -> bool:
    """Whether all that it keeps is a container's items, and attributes: nothing that a class written in C hides."""
    for kind in type(of).__mro__:
        new = kind.__new__
        in_c = isinstance(new, types.BuiltinMethodType) and new.__self__ is kind
        if in_c:  # copyreg looks so for what pickle has to ask more of
            has_attributes = hasattr(of, "__dict__") or bool(nested.attributes_of(of))
            plain = (object, types.SimpleNamespace)
            return has_attributes if kind in plain else issubclass(kind, _CONTAINERS)
    return False


def how_to_pass(state: Any) -> str:
    """What to give the guard for a hook's state, as a sentence's end."""
    if has_state_dict(state):
        return "pass it, LossGuard(touched=[..., state])"
    if can_be_put_back(state):
        return "pass it, LossGuard(touched=[..., Attributes(state)])"
    return f"it cannot be put back as it is, so {INSTEAD}"


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
    """A deep copy, with the very groups of ranks that it knows: these cannot be copied."""
    groups: dict[int, Any] = {id(one): one for one in nested.instances(state, dist.ProcessGroup)}
    with torch.no_grad():
        return copy.deepcopy(state, groups)
