# mypy: disable-error-code="call-arg, assignment"
# torch's stubs describe the C++ class; a Python subclass is constructed otherwise.
"""torch's own backends, watched: the data is left to gloo or NCCL, and what passes is counted, recorded and slowed.

launch(record=True) and launch(network=...) put this around gloo and NCCL. It sees every call, also those that DDP and
FSDP make from C++, but no message inside of them. So it counts the *algorithmic* volume (traffic.algorithmic_bytes),
and on an emulated network it holds a collective's end back until

    the last rank's start + what a flat algorithm takes on these links (EmulatedNetwork.collective_seconds)

or later, where the rank's port is still busy with the one before. The ranks learn the last call's moment by a second,
tiny all-reduce of the inner group. Messages (send and recv) are exact in both respects, as everywhere.

Calls on GPU tensors are only queued on the device: they go straight to the inner group, are counted, and recorded as
the time in which they were queued; they are not slowed. unverified: written without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from dtcourse import device, events, torch_private
from dtcourse.collectives import mesh_axes, running, traffic
from dtcourse.collectives.backend.torch_calls import METHODS, bytes_of, tensors_in
from dtcourse.collectives.flight import recorder, watched
from dtcourse.collectives.traffic import Label
from dtcourse.collectives.wire import observers
from dtcourse.collectives.wire.channel import Channel
from dtcourse.collectives.wire.work import CollectiveWork, Worker
from dtcourse.emulation import clock
from dtcourse.emulation.network import Ports


class InstrumentedGroup(dist.ProcessGroup):
    """One of torch's groups ("gloo" or "nccl"), seen from outside. `inner` does the work."""

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
        self.backend, self.store, self._timeout = backend, store, timeout
        self.global_ranks = global_ranks
        self.inner = torch_private.torch_group(backend, store, rank, size, timeout)
        kinds = torch_private.devices_of(self.inner)
        for kind in kinds:
            torch_private.attach(self, kind, torch_private.backend_of(self.inner, kind), backend)
        gpu = torch_private.gpu_backend_of(self.inner)
        # A group of GPUs alone (NCCL's) takes no note, and its messages are only queued.
        notes = torch.device("cpu") in kinds
        self.channel = Channel(self.inner, rank, global_ranks, gpu, group=self, carries_notes=notes)
        self._worker = Worker(f"{backend}-{'-'.join(map(str, global_ranks[:8]))}")

    def _watched(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = METHODS[method]
        options = args[-1] if args else kwargs.get("opts")
        now = getattr(kwargs.get("opts", options), "asyncOp", True) is False
        for observer in observers.present:
            observer.called(name, now)
        label = Label(name, traffic.current_phase())
        tensors = tensors_in(args)
        results = tensors_in(args[:1])
        nbytes = bytes_of(name, args, self.size())
        traffic.called(label)
        if traffic.active():
            volume = traffic.algorithmic_bytes(name, nbytes, self.size())
            traffic.algorithmic(label, volume, mesh_axes.axis_of(self))
        recording = recorder.current()
        entry = None
        if recording is not None:
            entry = watched.collective(recording, method, self, args, kwargs)
        call = getattr(self.inner, method)
        detail = {"phase": label.phase, "backend": self.backend, **mesh_axes.detail(self)}
        if self.backend == "nccl" or any(device.is_gpu(t.device) for t in tensors):
            with events.span(
                name, "communication", bytes=nbytes, lane="collectives", detail=detail
            ):
                return call(*args, **kwargs)

        def collective() -> None:
            with recorder.quiet():
                timed()

        def timed() -> None:
            begun = events.now()
            emulated = clock.installed()
            ports = None if emulated is None else emulated.ports()
            if ports is None or self.size() == 1:
                call(*args, **kwargs).wait()
            else:
                self._slowly(ports, name, nbytes, lambda: call(*args, **kwargs).wait())
            events.add(
                name,
                "communication",
                begun,
                events.now(),
                bytes=nbytes,
                lane="collectives",
                detail=detail | running.blocking(),
            )

        return self._worker.submit(CollectiveWork(name, results, entry), collective, now)

    def _slowly(
        self,
        ports: Ports,
        name: str,
        nbytes: int,
        call: Callable[[], Any],
    ) -> None:
        emulated = clock.installed()
        assert emulated is not None
        started = emulated.lane().time
        moment = torch.tensor([started], dtype=torch.float64)
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        self.inner.allreduce([moment], options).wait()
        call()
        crosses = any(
            ports.network.crosses(self.global_ranks[0], other) for other in self.global_ranks
        )
        seconds = ports.network.collective_seconds(name, nbytes, self.global_ranks)
        emulated.wait_until(ports.occupy(moment.item(), seconds, crosses), started)

    # --- messages ---

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> Any:
        return self.channel.start("send", tensors[0], dst, tag, wire=tag)

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> Any:
        return self.channel.start("recv", tensors[0], src, tag, wire=tag)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Any:
        return self.channel.start("recv", tensors[0], None, tag, wire=tag)

    # --- the group itself ---

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        if self.backend != "gloo":
            raise ValueError("monitored_barrier is only implemented for GLOO backend.")
        name = "monitored_barrier"
        label = Label(name, traffic.current_phase())
        traffic.called(label)
        detail = {"phase": label.phase, "backend": self.backend}
        with events.span(name, "communication", bytes=0, lane="collectives", detail=detail):
            self.inner.monitored_barrier(timeout or self._timeout, wait_all_ranks)

    def getBackendName(self) -> str:  # not "gloo": DDP's C++ would then look for gloo's own class
        return f"instrumented_{self.backend}"

    def get_group_store(self) -> dist.Store:
        return self.store

    def shutdown(self) -> None:
        self._worker.stop()
        self.inner.shutdown()

    def abort(self) -> None:
        self.inner.abort()


def _method(method: str) -> Callable[..., Any]:
    def watched(self: InstrumentedGroup, *args: Any, **kwargs: Any) -> Any:
        return self._watched(method, args, kwargs)

    watched.__name__ = watched.__qualname__ = method
    return watched


for _name in METHODS:
    setattr(InstrumentedGroup, _name, _method(_name))
