"""An argument of a launch of which each rank gets its own alone: what others were given never enters its process.

    launch(step, 2, Each([1, 2]))        # step(1) on rank 0, step(2) on rank 1

It travels with the rank's settings, so a launch without one sends nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dtcourse.launch import sendable, serialization


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


def sent(
    args: Sequence[Any], world_size: int, kwargs: Mapping[str, Any], *, apart: bool
) -> dict[int, tuple[Any, ...]]:
    """The same, for the ranks of a launch.

    apart: in memory of its own: who has called goes on meanwhile, and may write to what it gave

    Raises ValueError as by_rank does, and TypeError for what cannot be pickled.
    """
    own = by_rank(args, world_size, kwargs)
    for rank, values in own.items():
        try:
            serialized = serialization.serialize(values)
        except Exception as error:
            raise TypeError(sendable.unsendable_own(rank, values, error)) from None
        if apart:
            stream, buffers = serialization.copied(serialized)
            own[rank] = serialization.loads(stream, buffers=buffers)
    return own


def filled(args: Sequence[Any], own: tuple[Any, ...]) -> list[Any]:
    """In a rank: the arguments, with its own ones in their places."""
    left = list(own)
    return [left.pop(0) if isinstance(one, _Place) else one for one in args]
