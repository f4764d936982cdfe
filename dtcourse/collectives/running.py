"""How a collective is run: checked, named for the traffic counters, and with async_op=True in a thread of its own.

Collectives of one group run one after the other, in the order in which they were called: each rank has one worker
thread a group for the asynchronous ones (wire/work.py), and a blocking collective queues behind those still under way.
A backend's process group has its own such thread, in which what it calls here runs at once (`inside`); either way the
collective is one event of the timeline (`recorded`) and one call of the traffic.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from dtcourse import events
from dtcourse.collectives import checks, mesh_axes, p2p, traffic
from dtcourse.collectives.flight import recorder
from dtcourse.collectives.wire.work import CollectiveWork, Worker
from dtcourse.emulation import clock

_workers: weakref.WeakKeyDictionary[Any, Worker] = weakref.WeakKeyDictionary()
_here = threading.local()  # .inside: this thread is running a collective


def run(
    name: str,
    group: Any,
    steps: Callable[[], None],
    async_op: bool,
    result: Sequence[torch.Tensor],
    agree: checks.Signature,
) -> CollectiveWork | None:
    """Runs `steps` as the collective `name`. Returns None when it is done, or its Work where async_op is True.

    result: the tensors it writes, which its Work and Future hand out
    agree:  what every rank must have passed alike; compared between the ranks as checks.agree says
    """
    label = traffic.in_operation()

    def steps_alone() -> None:
        # What a worker does still belongs to the operation that its caller was in.
        with traffic.labelled(label), traffic.operation(name):
            checks.agree(group, agree)
            steps()

    def job(_: int = 0) -> None:
        with inside(), recorded(name, result, **mesh_axes.detail(group)):
            steps_alone()

    if _is_inside() and not async_op:  # a collective that is made of others, or that a backend runs
        steps_alone()
        return None
    entry = recorder.begun(name, group, result, detail={"call": agree.call}, asynchronous=async_op)
    worker = _workers.get(group)
    if worker is None:
        worker = _workers[group] = Worker(f"collectives of a group of {p2p.size(group)} ranks")
        weakref.finalize(group, worker.stop, 0.0)
    work = worker.submit(CollectiveWork(name, list(result), entry), job, now=not async_op)
    if async_op:
        return work
    work.wait()
    return None


@contextmanager
def inside() -> Iterator[None]:
    """In this thread a collective is under way: those that it calls are parts of it, and run where they are called."""
    before, _here.inside = _is_inside(), True
    try:
        with recorder.quiet():
            yield
    finally:
        _here.inside = before


def _is_inside() -> bool:
    return getattr(_here, "inside", False)


def blocking() -> dict[str, bool]:
    """For the detail of an event: whether the rank itself runs the collective, and so waits for it without a wait().

    On an emulated clock a wait is an event in any case.
    """
    mine = threading.current_thread() is threading.main_thread()
    return {"blocking": True} if mine and clock.installed() is None else {}


@contextmanager
def recorded(
    name: str, tensors: Sequence[torch.Tensor], phase: str | None = None, **detail: Any
) -> Iterator[None]:
    """Makes what happens inside an event of the timeline: the collective, with the bytes that it is about.

    phase: by default the one of this thread. One that fails leaves no event.
    """
    detail |= blocking()
    if not events.recording():
        yield
        return
    begun = events.now()
    yield
    events.add(
        name,
        "communication",
        begun,
        events.now(),
        bytes=sum(t.numel() * t.element_size() for t in tensors),
        lane="collectives",
        detail={"phase": phase or traffic.current_phase(), **detail},
    )
