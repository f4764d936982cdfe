# mypy: disable-error-code="override, assignment, call-arg"
# torch's stubs describe the C++ class; a Python subclass is constructed and called otherwise.
"""A process group of torch.distributed whose collectives are ours.

Here is how it runs one; collective_calls.py has the methods that torch calls. Collectives are numbered and run in order
by the group's worker (wire/work.py). Their messages go through the group's channel to an inner gloo (or NCCL) group,
which sees nothing but send and recv. A failure on one rank raises on all (wire/guard.py).
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from dtcourse import device, torch_private
from dtcourse.collectives import running, traffic
from dtcourse.collectives.backend import arguments
from dtcourse.collectives.backend.collective_calls import CollectiveCalls
from dtcourse.collectives.backend.monitored_barrier import meet
from dtcourse.collectives.flight import recorder
from dtcourse.collectives.traffic import Label
from dtcourse.collectives.wire.channel import Channel
from dtcourse.collectives.wire.guard import Guard, Splits
from dtcourse.collectives.wire.guarding import unwatch
from dtcourse.collectives.wire.work import CollectiveWork, Worker


class AlgorithmGroup(CollectiveCalls):
    """A process group whose collectives are ours.

    .channel  its messages (p2p uses it)
    .inner    the gloo group that carries them
    """

    def __init__(
        self,
        backend: str,
        store: dist.Store,
        rank: int,
        size: int,
        timeout: timedelta,
        global_ranks: list[int],
    ) -> None:
        super().__init__(rank, size)
        self.backend = backend
        self.store, self._timeout = store, timeout
        self._meetings = 0  # monitored barriers so far
        self.inner = torch_private.gloo_group(dist.PrefixStore("inner", store), rank, size, timeout)
        torch_private.attach(self, torch.device("cpu"), self.inner)
        gpu = None
        if _gpu_for_each_rank():
            gpu = torch_private.nccl_group(dist.PrefixStore("gpu", store), rank, size, timeout)
            torch_private.attach(self, device.current(), gpu)
        elif device.count():
            torch_private.attach(self, device.current(), self.inner)
        self._use(self.inner, gpu, global_ranks)

    def _use(self, host: Any, gpu: Any, global_ranks: list[int]) -> None:
        """Sends by these from here on."""
        watching = dist.PrefixStore("guard", torch_private.own_client(self.store))
        self.guard = Guard(host, watching, self.rank(), self.size(), global_ranks)
        self.channel = Channel(host, self.rank(), global_ranks, gpu, self.guard, group=self)
        self._worker = Worker(f"{self.backend}-{'-'.join(map(str, global_ranks[:8]))}")

    # --- how every collective runs ---

    def _run(
        self,
        name: str,
        what: str,
        tensors: list[torch.Tensor],
        steps: Callable[[], Any],
        options: Any = None,
        splits: Callable[[], Splits] | None = None,
    ) -> CollectiveWork:
        """Runs `steps` as the collective `name`.

        what:    all that the ranks must agree on, in words
        tensors: where the result will be
        splits:  elements to and from each rank, for an all-to-all
        """
        phase = traffic.current_phase()
        traffic.called(Label(name, phase))
        now = getattr(options, "asyncOp", True) is False
        entry = recorder.begun(name, self, tensors, detail={"call": what}, asynchronous=not now)

        def collective(number: int) -> None:
            if self.guard.failure is not None:
                raise self.guard.failure
            # The number and the words go into the tag of every message: see wire/channel.py.
            salt = zlib.crc32(f"{number} {what}".encode()) | 1
            sizes = splits() if splits is not None else None
            self.guard.begin(f"call {number} of the group's collectives", what, sizes)
            try:
                with running.Inside(Label(name, phase, salt)):
                    running.recorded(steps, name, tensors, self, phase, backend=self.backend)
            except BaseException as error:
                raise self.guard.fail(error, name) from None
            finally:
                self.guard.end()

        work = CollectiveWork(name, tensors, entry)
        return self._worker.submit(work, collective, now, numbered=True)

    # --- the barrier that says who did not come ---

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier whose error names the ranks that did not come within `timeout` (the group's,
        where none is given).
        """
        patience = self._timeout if timeout is None else timeout
        self._meetings += 1
        place = f"monitored_barrier/{self._meetings}"
        # A connection of its own: the guard's may not be kept waiting, nor the caller's.
        store = dist.PrefixStore(place, torch_private.own_client(self.store))

        def steps() -> None:
            ranks = self.channel.global_ranks
            meet(store, self.rank(), ranks, patience, wait_all_ranks, lambda: self.guard.failure)

        self._run("monitored_barrier", "monitored_barrier", [], steps).wait()

    # --- messages: posted at once, not in the collectives' order ---

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        return self.channel.isend(arguments.single(tensors), dst, tag)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        return self.channel.irecv(arguments.single(tensors), src, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        return self.channel.irecv(arguments.single(tensors), None, tag)

    # --- the group itself ---

    def getBackendName(self) -> str:
        return self.backend

    def get_group_store(self) -> dist.Store:
        return self.store

    def shutdown(self) -> None:
        """Ends the worker after what is queued; destroy_process_group calls it."""
        unwatch(self.guard)
        self._worker.stop()

    def abort(self) -> None:
        """Closes all connections: whatever waits on them, on any rank, raises."""
        self.guard.fail(RuntimeError("the group was aborted"), "abort")


def _gpu_for_each_rank() -> bool:
    """Whether every rank of this machine has a GPU of its own, so that NCCL can be used."""
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", 1)))
    return (
        dist.is_nccl_available()
        and device.is_gpu(device.current())
        and 0 < ranks_here <= device.count()
    )
