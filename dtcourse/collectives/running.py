"""How a collective is run: checked, named for the traffic counters, and with async_op=True in a thread of its own.

Collectives of one group run one after the other, in the order in which they were called: each rank has one worker
thread a group for the asynchronous ones (wire/work.py), and a blocking collective queues behind those still under way.
A backend's process group has its own such thread, in which what it calls here runs at once (`Inside`); either way the
collective is one event of the timeline (`recorded`) and one call of the traffic.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dtcourse import events
from dtcourse.collectives import checks, mesh_axes, p2p, traffic
from dtcourse.collectives.flight import recorder
from dtcourse.collectives.traffic import Label, here
from dtcourse.collectives.wire.work import CollectiveWork, Worker
from dtcourse.emulation import clock

_workers: weakref.WeakKeyDictionary[Any, Worker] = weakref.WeakKeyDictionary()


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

    def named_steps() -> None:
        with traffic.operation(name):
            checks.agree(group, agree)
            steps()

    if here.inside and not async_op:  # a collective that is made of others, or that a backend runs
        named_steps()
        return None
    label = here.label  # what a worker does still belongs to the operation that its caller was in

    def job(_: int = 0) -> None:
        with Inside(label):
            recorded(named_steps, name, result, group)

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


class Inside:
    """A context manager: this thread runs a collective, whose parts are neither queued nor recorded by themselves.

    label: what its messages are counted under
    """

    def __init__(self, label: Label | None) -> None:
        self.label = label

    def __enter__(self) -> None:
        self._before = here.inside, here.quiet, here.label
        here.inside = here.quiet = True
        here.label = self.label

    def __exit__(self, *_: object) -> None:
        here.inside, here.quiet, here.label = self._before


def blocking() -> dict[str, bool]:
    """For the detail of an event: whether the rank itself runs the collective, and so waits for it without a wait().

    On an emulated clock a wait is an event in any case.
    """
    mine = threading.current_thread() is threading.main_thread()
    return {"blocking": True} if mine and clock.installed() is None else {}


def recorded(
    steps: Callable[[], Any],
    name: str,
    tensors: Sequence[torch.Tensor],
    group: Any,
    phase: str | None = None,
    **detail: Any,
) -> None:
    """Runs `steps`, and makes them an event of the timeline: the collective, with the bytes that it is about.

    phase: by default the one of this thread. One that fails leaves no event.
    """
    if not events.recording():
        steps()
        return
    detail |= mesh_axes.detail(group) | blocking()
    begun = events.now()
    steps()
    events.add(
        name,
        "communication",
        begun,
        events.now(),
        bytes=sum(t.numel() * t.element_size() for t in tensors),
        lane="collectives",
        detail={"phase": phase or traffic.current_phase(), **detail},
    )
