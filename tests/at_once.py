"""Launches that mostly wait, side by side: waiting needs no processor.

Few at a time: where all of many begin together on a busy machine, some would not meet in time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

AT_A_TIME = 5


def outcomes(calls: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """What each call returned, or the exception that it raised, by its name; each in a thread of its own."""

    def outcome(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            return error

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        return dict(zip(calls, pool.map(outcome, calls.values()), strict=True))


def returned(calls: Iterable[Callable[[], Any]]) -> list[Any]:
    """What the calls returned, in their order; raises the first one's exception that has raised one."""
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        return list(pool.map(lambda call: call(), calls))
