"""What becomes of a bucket while backward goes on: a thread beside it sends, waits and decompresses,
bucket after bucket.

    future = in_background(finish, bucket.buffer(), group)     # finish() sends; backward does not wait for it

A collective's Future can call back when it is there, and one would think that the callback may call the next round's
collective (PyTorch's powerSGD_hook does). On NCCL it may: there a callback runs at once, in the thread that called. On
gloo it runs in one of the group's own few threads, whenever the collective ends on this rank. One rank would then call
bucket 1's second round before bucket 2's first, another rank after it; gloo pairs calls by their number, so each would
get the other's bytes. And a callback that waits keeps one of the threads that it waits for. Hence one thread a group,
which calls all rounds of one bucket and then all of the next, on every rank alike.

On a GPU the thread's operations have a stream of their own: on backward's they would wait for what backward has queued,
and backward for their messages. The stream begins after what backward had queued when it handed the bucket over, and
the thread waits, on the host, until it is through, so that whoever has waited for the Future finds the mean there
whatever its stream. (unverified: no GPU was at hand. `begin`, which compresses, stays on backward's stream.)

Under an emulated device the thread's operations take time too, beside those of backward (clock.computing).

What backward itself calls on that group meanwhile (the all-reduce of unused parameters, SyncBatchNorm's) would come in
between, so the thread has a group of its own, of the same ranks. It is formed when it is first asked for.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dtcourse import device
from dtcourse.collectives import traffic
from dtcourse.collectives.wire.work import CollectiveWork, Worker
from dtcourse.emulation import clock
from dtcourse.parameters.replicas import Group
from dtcourse.streams import Moment, SecondStream

_beside: weakref.WeakKeyDictionary[Any, Beside] = weakref.WeakKeyDictionary()


class Beside:
    """What the thread of one group has: a group of the same ranks, the thread itself, and a stream for each device."""

    def __init__(self, ranks: list[int]) -> None:
        self.group: dist.ProcessGroup = dist.new_group(ranks, use_local_synchronization=True)
        self.worker = Worker("compression")
        self.streams: dict[torch.device, SecondStream] = {}

    def stream(self, where: torch.device) -> SecondStream:
        """Made when it is first asked for."""
        if where not in self.streams:
            self.streams[where] = SecondStream(where)
        return self.streams[where]


def group_beside(group: Group = None) -> dist.ProcessGroup:
    """A group of the same ranks, for the thread's collectives alone. All of its ranks ask for it at the same time."""
    return _of(group).group


def in_background(
    finish: Callable[[], Tensor], buffer: Tensor, group: Group = None
) -> torch.futures.Future[Tensor]:
    """Calls finish() in the group's thread, after what it was given before, and copies the result into `buffer`.

    Returns a Future of the buffer, for our DDP and for PyTorch's. It raises what finish() raises.
    """
    phase = traffic.current_phase()  # the thread is in no backward, and works for one
    beside, handed_over = _of(group), Moment(buffer.device)

    def run() -> None:
        device.use(buffer.device)  # a new thread is on the first GPU
        stream = beside.stream(buffer.device)
        # `finish` holds the tensors that backward's stream made for it until this stream has read them.
        with traffic.phase(phase), clock.computing(), stream.after(handed_over):
            buffer.copy_(finish())

    work = beside.worker.submit(CollectiveWork("compressed mean", [buffer]), run)
    return work.get_future().then(lambda done: done.value()[0])


def _of(group: Group) -> Beside:
    key = dist.group.WORLD if group is None else group
    if key not in _beside:
        _beside[key] = Beside(dist.get_process_group_ranks(key))
        weakref.finalize(key, _beside[key].worker.stop, 0.0)
    return _beside[key]
