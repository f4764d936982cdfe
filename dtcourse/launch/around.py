"""What goes round the function of each launch of this process, where a tool that watches programs asks for it.

The program is not changed, and knows nothing of it:

    around.every_launch(wrap)    # wrap(function, world size) -> what is sent in its place, and variables of the ranks
    around.every_launch(None)    # no more
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Wrap = Callable[[Callable[..., Any], int], tuple[Callable[..., Any], dict[str, str]]]
LONG = 60.0  # seconds: a shorter time limit is that of a launch which is to reach it
_wrap: Wrap | None = None
_slower = 1.0


def every_launch(wrap: Wrap | None, slower: float = 1.0) -> None:
    """From now on, in this process. What replaces a function has it as `func`, as functools.partial does.

    slower: by how much a watched program may be: time limits of a minute and more are so many times as long
    """
    global _wrap, _slower
    _wrap, _slower = wrap, slower


def time_limit(limit: float | None) -> float | None:
    """Of a launch, in seconds."""
    return limit if limit is None or limit < LONG else limit * _slower


def wrapped(
    function: Callable[..., Any], world_size: int, env: dict[str, str] | None
) -> tuple[Callable[..., Any], dict[str, str]]:
    """What launch sends in place of a function, and its variables: the program's own go over those of the tool."""
    if _wrap is None:
        return function, env or {}
    replaced, variables = _wrap(function, world_size)
    return replaced, {**variables, **(env or {})}
