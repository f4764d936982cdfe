"""Optimizers that do less than they seem to: they hold parameters that nobody uses, or count by a number that stands.

A parameter that never gets a gradient and belongs to no model that runs was replaced (by a sharding, by a move to
another device) after the optimizer was built, if the models have one of its shape with a gradient that no optimizer
has. A counter is a whole number in the state of a parameter. It stands if it is 0 or 1 after each update, where no
other counter of that parameter moves.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from dtcourse.debugging.sentences import ranks_in_words
from dtcourse.debugging.unasked.watch import Roots, unseen
from dtcourse.plural import plural

UPDATES = 3  # of a parameter, that leave a counter where it was
STARTS = (0, 1)  # of a counter


class Idle(NamedTuple):
    """left: parameters of an optimizer that nobody uses, of how many; name, shape: of the first that nobody updates"""

    kind: str
    left: int
    of: int
    steps: int
    name: str
    shape: tuple[int, ...]


class Standing(NamedTuple):
    """A counter, of which parameter, its value, and over how many updates it has kept it."""

    kind: str
    counter: str
    name: str
    value: int
    updates: int


class OptimizerSteps:
    """Looks at this rank's optimizers before and after each of their steps."""

    name = "optimizers"

    def __init__(self) -> None:
        self._roots = Roots()
        self._handles: list[Any] = []
        self._steps: dict[Optimizer, int] = {}
        self._updated: dict[
            nn.Parameter, int
        ] = {}  # by parameter of an optimizer, steps in which it had a gradient
        self._counted: dict[tuple[nn.Parameter, str], set[int]] = {}
        self._trained: set[nn.Parameter] = (
            set()
        )  # of a model, with a gradient when some optimizer stepped

    def begin(self) -> None:
        self._roots.begin()
        self._handles = [
            register_optimizer_step_pre_hook(self._steps_next),
            register_optimizer_step_post_hook(self._has_stepped),
        ]

    def end(self) -> list[Idle | Standing]:
        self._roots.end()
        for handle in self._handles:
            handle.remove()
        names = self._roots.names()
        return [
            found
            for one in self._steps
            for found in (self._idle(one, names), self._standing(one, names))
            if found
        ]

    def _steps_next(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._steps[optimizer] = self._steps.get(optimizer, 0) + 1
        for root in self._roots.found.values():
            self._trained.update(p for p in root.parameters() if p.grad is not None)

    @unseen
    def _has_stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for p in _parameters(optimizer):
            if p.grad is None:
                self._updated.setdefault(p, 0)
                continue
            self._updated[p] = self._updated.get(p, 0) + 1
            for key, value in optimizer.state.get(p, {}).items():
                number = _whole(value, p)
                if number is not None:
                    self._counted.setdefault((p, str(key)), set()).add(number)

    def _idle(self, optimizer: Optimizer, names: dict[int, str]) -> Idle | None:
        mine = _parameters(optimizer)
        held = {id(p) for one in self._steps for p in _parameters(one)}
        loose = [p for p in self._trained if id(p) not in held and id(p) in names]
        loose.sort(key=lambda p: list(names).index(id(p)))
        left = [p for p in mine if not self._updated[p] and id(p) not in names]
        for p in loose:
            if any(one.shape == p.shape for one in left):
                kind, steps = type(optimizer).__name__, self._steps[optimizer]
                return Idle(kind, len(left), len(mine), steps, names[id(p)], tuple(p.shape))
        return None

    def _standing(self, optimizer: Optimizer, names: dict[int, str]) -> Standing | None:
        for number, p in enumerate(_parameters(optimizer)):
            counters = {key: values for (of, key), values in self._counted.items() if of is p}
            stands = all(len(values) == 1 and min(values) in STARTS for values in counters.values())
            if counters and stands and self._updated[p] >= UPDATES:
                key, (value,) = next(iter(counters.items()))
                name = names.get(id(p), f"parameter {number}")
                return Standing(type(optimizer).__name__, key, name, value, self._updated[p])
        return None


def _parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _whole(value: Any, parameter: nn.Parameter) -> int | None:
    """A number without a fraction, if it is one; what has the parameter's own shape is a sum of gradients."""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.is_meta or value.shape == parameter.shape:
            return None
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value // 1:
        return None
    return int(value)


def step_on_nothing(seen: list[Any], results: list[Any]) -> str | None:
    """The first optimizer whose parameters nobody uses, or whose counter stands."""
    ranks = [rank for rank, found in enumerate(seen) if found]
    if not ranks:
        return None
    one = seen[ranks[0]][0]
    who = ranks_in_words(rank for rank in ranks if seen[rank][0] == one)
    if isinstance(one, Standing):
        return (
            f"On {who}, the {one.counter} of {one.name} in the state of {one.kind} is {one.value} after each of "
            f"{one.updates} updates: what is computed from it stays that of one step."
        )
    return (
        f"On {who}, {one.left} of the {plural(one.of, 'parameter')} of {one.kind} have had no gradient in "
        f"{plural(one.steps, 'step')} and are in no model that runs, while {one.name} {one.shape} has one and is in no "
        "optimizer: was it replaced after the optimizer was built?"
    )
