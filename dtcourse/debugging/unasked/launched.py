"""A launch's function with the tools around it, in each rank; and what the tools say of all that they have seen.

The launch's own program is not changed: launch/around.py sends `Watched` in the function's place.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dtcourse.debugging.hang import diagnose_hang, read_records, recorded_in
from dtcourse.debugging.unasked.watch import Says, Watch, seen_by_all, sentences, watched

SEEN, RECORDS, RESULT = "seen", "records", "result"


class Watched:
    """A function of ranks with the tools around it. What they see goes to `folder`, and so does what it returns."""

    def __init__(
        self, func: Callable[..., Any], folder: Path, watches: Sequence[type[Watch]]
    ) -> None:
        self.func, self._folder, self._watches = func, folder, list(watches)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with watched(self._folder / SEEN, self._watches):
            result = self.func(*args, **kwargs)
        _keep(self._folder / f"{RESULT}-{os.environ.get('RANK', 0)}", result)
        return result

    def variables(self) -> dict[str, str]:
        """Of the ranks, for the flight recorder."""
        return recorded_in(self._folder / RECORDS)


def said(folder: Path, says: Mapping[type[Watch], Says], world_size: int) -> dict[str, str]:
    """By tool, the sentences of those that speak of a launch whose function was `Watched` there.

    A launch that has raised or hung leaves what it has left.
    """
    found: dict[str, str | None] = {}
    with contextlib.suppress(ValueError):  # no rank has left a record
        hung = diagnose_hang(read_records(folder / RECORDS))
        found["hang"] = str(hung) if hung else None
    results = [_kept(folder / f"{RESULT}-{rank}") for rank in range(world_size)]
    found |= sentences(says, seen_by_all(folder / SEEN, [*says], world_size), results)
    return {tool: sentence for tool, sentence in found.items() if sentence}


def _keep(file: Path, result: Any) -> None:
    """What a rank returned, where it can be pickled by name; tools judge tensors and numbers."""
    with contextlib.suppress(Exception):
        file.write_bytes(pickle.dumps(result))


def _kept(file: Path) -> Any:
    with contextlib.suppress(Exception):
        return pickle.loads(file.read_bytes())
    return None
