"""What communication hooks keep from step to step, seen by who must put it back: the guard that leaves out a step.

    with_hooks = called_hooks()          # before the forward
    ...                                  # each hook notes its state when it is called
    with_hooks.states                    # after the backward

A compression keeps what it has left out, PowerSGD its matrices. They change in backward, where nobody else looks.
"""

from __future__ import annotations

import weakref
from numbers import Number
from types import FunctionType
from typing import Any

import torch.distributed as dist

# What a hook is given as its state and does not change: PyTorch's all-reduce takes a group.
_NOTHING_KEPT = (dist.ProcessGroup, Number, str, FunctionType, type)


class CalledHooks:
    """The states of the hooks that have been called since it was made; those alone that may change in a step."""

    def __init__(self) -> None:
        self.states: list[Any] = []


_listening: weakref.WeakSet[CalledHooks] = weakref.WeakSet()


def called_hooks() -> CalledHooks:
    """Listens from now on, until it is let go of."""
    called = CalledHooks()
    _listening.add(called)
    return called


def note_called(state: Any) -> None:
    """A hook is called with this state."""
    if state is None or isinstance(state, _NOTHING_KEPT):
        return
    for called in _listening:
        if not any(state is one for one in called.states):
            called.states.append(state)
