"""How a collective is run: checked, named for the traffic counters, and with async_op=True in a thread of its own.

Collectives of one group run one after the other, in the order in which they were called: each rank has one worker
thread a group for the asynchronous ones (wire/work.py), and a blocking collective queues behind those still under way.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dtcourse.collectives import checks, traffic
from dtcourse.collectives.wire.work import CollectiveWork, Worker

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

    def job(_: int = 0) -> None:
        # What a worker does still belongs to the operation that its caller was in.
        with traffic.labelled(label), traffic.operation(name):
            before, _here.inside = getattr(_here, "inside", False), True
            try:
                checks.agree(group, agree)
                steps()
            finally:
                _here.inside = before

    if getattr(_here, "inside", False) and not async_op:  # a collective that is made of others
        job()
        return None
    worker = _workers.get(group)
    if worker is None:
        worker = _workers[group] = Worker(f"collectives of {checks.describe(group)}")
        weakref.finalize(group, worker.stop, 0.0)
    work = worker.submit(CollectiveWork(name, list(result)), job, now=not async_op)
    if async_op:
        return work
    work.wait()
    return None
