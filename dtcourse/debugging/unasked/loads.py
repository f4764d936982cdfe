"""Checkpoints of which a model has taken less than it was given, because the same tensors have other names in it.

load_state_dict(strict=False) leaves out what does not fit. That is meant where a part is new (another head). Where a
key that was left over is one that is missing, but for its beginning, and its tensor has that one's shape, a wrapper has
given the name.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from dtcourse.callers import callers
from dtcourse.debugging.sentences import line_in_words, ranks_in_words


class Loaded(NamedTuple):
    """taken, of: how many of the model's tensors; given, wanted: the first pair of names;  pairs: how many of them"""

    taken: int
    of: int
    given: str
    wanted: str
    pairs: int
    line: str


class Loads:
    """Notes what this rank's modules leave out of a state that they load."""

    name = "loads"

    def __init__(self) -> None:
        self._found: list[Loaded] = []
        self._load: Any = None

    def begin(self) -> None:
        self._load = load = nn.Module.load_state_dict
        note = self._note

        def watched(module: nn.Module, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
            left = load(module, state_dict, *args, **kwargs)
            note(module, state_dict, left)
            return left

        nn.Module.load_state_dict = watched  # type: ignore[method-assign, assignment]

    def end(self) -> list[Loaded]:
        nn.Module.load_state_dict = self._load  # type: ignore[method-assign]
        return self._found

    def _note(self, module: nn.Module, given: Any, left: Any) -> None:
        if not left.missing_keys or not left.unexpected_keys:
            return
        own = module.state_dict()
        pairs = [
            (key, wanted)
            for wanted in left.missing_keys
            for key in left.unexpected_keys
            if _ends(key, wanted) and _shape(given.get(key)) == _shape(own.get(wanted)) is not None
        ]
        if pairs:
            taken = len(own) - len(left.missing_keys)
            line = line_in_words(callers())
            self._found.append(Loaded(taken, len(own), *pairs[0], len(pairs), line))


def _ends(one: str, other: str) -> bool:
    return one.endswith(f".{other}") or other.endswith(f".{one}")


def _shape(value: Any) -> tuple[int, ...] | None:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None


def left_out(seen: list[Any], results: list[Any]) -> str | None:
    """The first state of which tensors were left out for their names."""
    ranks = [rank for rank, found in enumerate(seen) if found]
    if not ranks:
        return None
    one = seen[ranks[0]][0]
    more = f", and {one.pairs - 1} more so" if one.pairs > 1 else ""
    return (
        f"On {ranks_in_words(ranks)}, the model has taken {one.taken} of its {one.of} tensors from the state at "
        f"{one.line}: it was given {one.given} where it has {one.wanted}{more}, and strict=False lets that pass."
    )
