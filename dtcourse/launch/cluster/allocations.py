"""One allocation for many launches: the nodes are held by one job, whose agents take call after call (serving.py).

    with cluster.allocation(nodes=2, idle_minutes=10):
        launch(step, 4, nodes=2, cluster="slurm")       # waits for the nodes
        launch(step, 4, nodes=2, cluster="slurm")       # starts at once

With `keep = true` in cluster.toml a notebook does so by itself: its first launch asks for nodes, and they are asked for
anew where a later launch needs more of them. What an allocation cannot take gets a job of its own: a launch that needs
more, and one beside another that still runs.

It is given back when the block ends, when no launch has come for `idle_minutes`, on `%dtcourse release`, and when the
notebook ends or dies (presence.py).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dtcourse.launch import options, rank, serialization
from dtcourse.launch.cluster import remote
from dtcourse.launch.cluster.held import Allocation, NotTaken
from dtcourse.launch.cluster.settings import Settings
from dtcourse.launch.interrupts import Stop
from dtcourse.launch.run import Run

_given: list[Allocation] = []  # by `with` blocks, the inner one last
_kept: list[Allocation] = []  # for `keep`: at most one for each cluster
_lock = threading.RLock()


@contextmanager
def held(
    settings: Settings, nodes: int, ranks_per_node: int, idle_minutes: float, minutes: int
) -> Iterator[Allocation]:
    """Holds nodes for the launches in this block that name the same cluster."""
    one = Allocation(settings, nodes, ranks_per_node, idle_minutes, minutes)
    with _lock:
        _given.append(one)
    try:
        yield one
    finally:
        with _lock:
            _given.remove(one)
        one.release()


def run_once(
    settings: Settings,
    layout: options.Layout,
    name: str,
    asked: rank.Settings,
    serialized: serialization.Serialized,
    on_line: Callable[[int, str], None] | None,
    on_message: Callable[[int, Any], None] | None,
    stop: Stop | None = None,
) -> Run[Any]:
    """One launch on the cluster: on nodes that are held, where they can take it, else as a job of its own."""
    for _ in range(2):
        one = _taken(settings, layout)
        if one is None:
            break
        try:
            return one.run(layout, asked, serialized, on_line, on_message, stop)
        except NotTaken:  # they were idle for too long, just now
            pass
        finally:
            one.busy.release()
    return remote.run_once(settings, layout, name, asked, serialized, on_line, on_message, stop)


def _taken(settings: Settings, layout: options.Layout) -> Allocation | None:
    """An allocation for that launch, with its `busy` held; None where it shall have a job of its own."""
    with _lock:
        for one in reversed(_given):
            if one.takes(settings, layout):
                if not one.is_good():
                    return None
                return one if one.busy.acquire(blocking=False) else None
        if not settings.keep:
            return None
        nodes, ranks = layout.nodes, layout.ranks_per_node
        for one in [one for one in _kept if one.settings == settings]:
            if not one.busy.acquire(blocking=False):
                return None
            if one.is_good() and one.takes(settings, layout):
                return one
            _kept.remove(one)
            one.release()
            one.busy.release()
            nodes = max(nodes, one.layout.nodes)
            ranks = max(ranks, one.layout.ranks_per_node)
        one = Allocation(
            settings,
            nodes,
            ranks,
            settings.idle_minutes,
            max(settings.keep_minutes, settings.minutes),
        )
        _kept.append(one)
        one.busy.acquire()
        return one


def release() -> list[Allocation]:
    """Gives back all nodes that are held. Returns what was held."""
    with _lock:
        some = [one for one in _given + _kept if one.is_open]
        _kept.clear()
    for one in some:
        one.release()
    return some


def _forget() -> None:
    """In a process forked off this one: what its parent holds is not its own."""
    global _lock
    for one in _given + _kept:
        one.forget()
    _given.clear()
    _kept.clear()
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_forget)
