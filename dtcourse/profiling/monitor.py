"""The monitor: how fast training goes, and what each step's time is spent on.

    monitor = Monitor(warm_up=3)
    for inputs, targets in monitor.steps(loader):
        ...                                        # forward, backward, optimizer: what the step is
        monitor.log(loss=loss.item())
    return monitor.report()                        # of this rank; Report.join(run) makes one of all ranks

A step begins where the last one ended. Its seconds are split into four, which add up to all of it:

    data           until the loader has handed over the batch
    compute        the rank's thread was running
    communication  it was neither running nor able to: it waited for other ranks. Communication that hides behind
                   computation does not show here: this is the exposed part, the one that costs time.
    queueing       it could have run, and every core was busy (more ranks than cores). None on a machine of one's own.

On a CPU the kernel's accounts of the thread tell them apart (/proc/thread-self/schedstat; elsewhere, as on macOS,
queueing counts as communication). With several intra-op threads (launch(threads=...)) waiting for one's own threads
counts as communication too. On a GPU the thread only queues work, so a few steps are seen by torch.profiler, and the
share of time in which NCCL's kernels ran alone is communication (dtcourse.profiling.kernels).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from dtcourse import device, events
from dtcourse.launch import send_message
from dtcourse.plural import plural
from dtcourse.profiling import kernels
from dtcourse.profiling.report import Report, Step

Batch = TypeVar("Batch")
Count = Callable[[Any], int]

LIVE_EVERY = 0.2  # seconds between two messages to the notebook
PROFILED_STEPS = 3  # on a GPU

_SCHEDSTAT = Path("/proc/thread-self/schedstat")


class Monitor:
    """Times the steps of a training loop on one rank. Costs about 0.1 ms a step.

    warm_up: the first steps, which are slower for reasons of their own (allocations, connections, rebuilt buckets)
             and stay out of the report
    total:   how many steps there will be, for the live view's bar, where the loader cannot tell

    While it runs it sends messages to the notebook: launch(..., on_message=plots.live_monitor()) shows them.
    """

    def __init__(self, warm_up: int = 2, total: int | None = None) -> None:
        if warm_up < 0:
            raise ValueError(f"warm_up is a number of steps, 0 or more; got {warm_up}")
        self.warm_up, self.total = warm_up, total
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world_size = dist.get_world_size() if dist.is_initialized() else 1
        self._steps: list[Step] = []
        self._logged: dict[str, float] = {}
        self._last_message = 0.0
        self._kernels = kernels.Profile(PROFILED_STEPS) if device.is_gpu() else None

    def steps(
        self, batches: Iterable[Batch], samples: Count | None = None, tokens: Count | None = None
    ) -> Iterator[Batch]:
        """Yields the batches; what the loop does until it asks for the next one is the step.

        samples, tokens: how many a batch has; default: the length of its first tensor, and no tokens
        """
        if self.total is None and isinstance(batches, Sized):
            self.total = len(batches)
        iterator = iter(batches)
        for number in itertools.count():
            start = _Reading()
            with events.span("next batch", "data"):
                batch = next(iterator, _END)
            if batch is _END:
                break
            loaded = _Reading()
            if self._kernels and number == self.warm_up:
                self._kernels.start()
            with events.span("step", "step"):
                yield batch  # type: ignore[misc]
                device.synchronize()
            done = _Reading()
            if self._kernels:
                self._kernels.step()
            self._note(
                start, loaded, done,
                samples=samples(batch) if samples else _length(batch),
                tokens=tokens(batch) if tokens else 0,
            )  # fmt: skip
        self._send(final=True)

    def log(self, **values: float) -> None:
        """Numbers of this step to keep beside its times: a loss, a gradient's norm."""
        self._logged.update({name: float(value) for name, value in values.items()})

    def report(self) -> Report:
        """What was measured after the warm-up. ValueError where that is nothing."""
        measured = self._steps[self.warm_up :]
        if not measured:
            raise ValueError(
                f"{plural(len(self._steps), 'step')} taken, and the first {self.warm_up} are warm-up, so nothing was "
                "measured: take more steps, or a shorter warm-up"
            )
        if self._kernels:
            share = self._kernels.exposed_share()
            measured = [step.with_communication(share) for step in measured]
        return Report(measured, ranks=[self.rank], warm_up=self.warm_up)

    def _note(
        self, start: _Reading, loaded: _Reading, done: _Reading, samples: int, tokens: int
    ) -> None:
        seconds = done.clock - loaded.clock
        running, queueing = done.running - loaded.running, done.queueing - loaded.queueing
        # The kernel accounts at its own ticks; what they add up to may pass the clock's by a little.
        running = min(running, seconds)
        queueing = min(queueing, seconds - running)
        waiting = seconds - running - queueing
        alone = self.world_size == 1
        step = Step(
            seconds=done.clock - start.clock,
            data=loaded.clock - start.clock,
            compute=running + (waiting if alone else 0.0),
            communication=0.0 if alone else waiting,
            queueing=queueing,
            samples=samples,
            tokens=tokens,
            logged=self._logged,
        )
        self._logged = {}
        self._steps.append(step)
        self._send(final=False)

    def _send(self, final: bool) -> None:
        """The latest steps' sums, a few times a second: the live view divides."""
        now = time.monotonic()
        if not final and now - self._last_message < LIVE_EVERY:
            return
        self._last_message = now
        recent = self._steps[-20:] if not final else self._steps[self.warm_up :]
        message: dict[str, Any] = {
            "steps": len(self._steps),
            "total": self.total,
            "final": final,
            "recent": len(recent),
            "logged": recent[-1].logged if recent else {},
        }
        for name in (
            "seconds",
            "data",
            "compute",
            "communication",
            "queueing",
            "samples",
            "tokens",
        ):
            message[name] = sum(getattr(step, name) for step in recent)
        send_message({"monitor": message})


class _Reading:
    """The clock, and how long this thread has run and has waited for a core until now, all in seconds."""

    __slots__ = ("clock", "queueing", "running")

    def __init__(self) -> None:
        self.clock = time.monotonic()
        try:
            running, queueing, _ = _SCHEDSTAT.read_text().split()
            self.running, self.queueing = int(running) / 1e9, int(queueing) / 1e9
        except (OSError, ValueError):  # no such accounts here
            self.running, self.queueing = time.thread_time(), 0.0


_END: Any = object()


def _length(batch: Any) -> int:
    """Samples of a batch: the first dimension of the first tensor in it."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else 1
    parts = batch.values() if isinstance(batch, dict) else batch
    for part in parts if isinstance(parts, Iterable) and not isinstance(parts, str) else ():
        if length := _length(part):
            return length
    return 0
