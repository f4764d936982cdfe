"""An argument of a launch of which each rank gets its own alone: what others were given never enters its process.

    launch(step, 2, Each([1, 2]))        # step(1) on rank 0, step(2) on rank 1

It travels with the rank's settings, so a launch without one sends nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Each:
    """values: by rank"""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = values

    def __reduce__(self) -> tuple[Any, ...]:
        return _Place, ()


class _Place:
    """Where one stands among the arguments that all ranks are sent."""


def by_rank(
    args: Sequence[Any], world_size: int, kwargs: Mapping[str, Any] | None = None
) -> dict[int, tuple[Any, ...]]:
    """{rank: what it alone is sent} of a call's arguments; nothing, where none is an Each.

    Raises ValueError where there is not one value per rank, or an Each has a name.
    """
    if named := [name for name, value in (kwargs or {}).items() if isinstance(value, Each)]:
        raise ValueError(f"{named[0]} is an Each: give that by its place, not by its name")
    found = [one.values for one in args if isinstance(one, Each)]
    for values in found:
        if len(values) != world_size:
            raise ValueError(
                f"Each of {len(values)} values for {world_size} ranks: give one per rank"
            )
    return {rank: tuple(v[rank] for v in found) for rank in range(world_size)} if found else {}


def filled(args: Sequence[Any], own: tuple[Any, ...]) -> list[Any]:
    """In a rank: the arguments, with its own ones in their places."""
    left = list(own)
    return [left.pop(0) if isinstance(one, _Place) else one for one in args]
