"""What every parameter server does: receives gradients, lets its rule decide, answers with parameters.

It waits for a header or a gradient from each worker that it has answered, takes what comes first (p2p.wait_any), and
tells the rule when a gradient is whole. A rule that does not mind the order gets them in the workers' order, so that it
runs on the virtual clock too. A worker whose connection breaks, or who says that it gives up, is active no more.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from dtcourse import events
from dtcourse.asynchronous.parameter_servers.links import Link
from dtcourse.asynchronous.parameter_servers.roles import GAVE_UP, GRADIENT, PULL, PUSH
from dtcourse.asynchronous.parameter_servers.update_rules import UpdateRule
from dtcourse.collectives import p2p
from dtcourse.parameters.buckets import Bucket
from dtcourse.plural import plural


@dataclass(frozen=True)
class Served:
    """One thing that a server did.

    what:      "apply" (gradients of these workers), "drop" (one came too late), "pull" (parameters to a worker)
    version:   updates made by then, this one included
    staleness: of each gradient: updates between the pull that it was computed from and this one; () for a pull
    time:      seconds on the clock of `events.now`
    """

    what: str
    workers: tuple[int, ...]
    version: int
    staleness: tuple[int, ...]
    time: float


@dataclass
class ServerReport:
    """What a server did, in order, and who was lost: {worker: why}."""

    served: list[Served] = field(default_factory=list)
    lost: dict[int, str] = field(default_factory=dict)

    @property
    def staleness(self) -> list[int]:
        """Of each gradient that was applied, in order."""
        return [s for one in self.served if one.what == "apply" for s in one.staleness]

    @property
    def num_updates(self) -> int:
        """Steps of the optimizer."""
        return sum(one.what == "apply" for one in self.served)

    @property
    def num_dropped(self) -> int:
        """Gradients that came too late to be applied."""
        return sum(one.what == "drop" for one in self.served)


@dataclass(frozen=True)
class Coming:
    """What a worker sends next: the header of a message, or what follows it."""

    is_header: bool
    works: list[dist.Work]


class FlatServer:
    """Serves parameters that lie in buckets to `workers`, until all of them have ended.

    buckets:   flat gradients; the parameters in them are what `optimizer` steps
    the rest:  as in ParameterServer, and as a rule sees it (update_rules.Serving)
    """

    def __init__(
        self,
        buckets: Sequence[Bucket],
        optimizer: torch.optim.Optimizer,
        rule: UpdateRule,
        workers: Sequence[int],
        link: Link,
    ) -> None:
        self.optimizer, self.rule, self.link = optimizer, rule, link
        self.num_workers, self.version = len(workers), 0
        self.active = set(workers)
        self.num_pushed = dict.fromkeys(workers, 0)
        self.pulled = dict.fromkeys(workers, 0)
        self.report = ServerReport()
        self._buckets = buckets
        self._headers = {w: torch.zeros(2, dtype=torch.int64) for w in workers}
        self._gradients = {w: [bucket.empty() for bucket in buckets] for w in workers}
        self._coming: dict[int, Coming] = {}
        self._going: dict[int, list[Any]] = {}  # the last answer to each worker, and its tensors
        self._broken: list[tuple[int, BaseException]] = []

    def serve(self) -> ServerReport:
        """Returns when every worker has ended. Raises RuntimeError if all of them were lost."""
        for worker in sorted(self.active):
            self._expect(worker, [self._headers[worker]], is_header=True)
        self._lose_broken()
        while self.active:
            worker, coming = self._next()
            try:
                for work in coming.works:
                    work.wait()
            except RuntimeError as error:
                self._lose(worker, error)
            else:
                self._came(worker, coming.is_header)
            self._lose_broken()
        for worker in sorted(self._going):
            self._finish_answer(worker)
        if len(self.report.lost) == self.num_workers:
            raise RuntimeError(f"all workers were lost: {'; '.join(self.report.lost.values())}")
        return self.report

    def _next(self) -> tuple[int, Coming]:
        """The worker whose message has come first; in their order, where the rule does not mind."""
        workers = sorted(self._coming)
        first = 0
        if self.rule.arrival_decides:
            first = p2p.wait_any([self._coming[w].works[-1] for w in workers])
        return workers[first], self._coming.pop(workers[first])

    def _expect(self, worker: int, tensors: Sequence[torch.Tensor], is_header: bool) -> None:
        """Posts the receives of what the worker sends next."""
        try:
            with p2p.operation("push"):
                works = [self.link.irecv(t, worker, PUSH) for t in tensors]
        except RuntimeError as error:
            self._broken.append((worker, error))
        else:
            self._coming[worker] = Coming(is_header, works)

    def _came(self, worker: int, is_header: bool) -> None:
        what = int(self._headers[worker][0])
        if not is_header:
            self.num_pushed[worker] += 1
            self.rule.received(self, worker)
        elif what == GRADIENT:
            self._expect(worker, self._gradients[worker], is_header=False)
        else:
            if what == GAVE_UP:
                self._report_lost(worker, "an exception ended its training")
            self.active.discard(worker)
            self.rule.left(self, worker)

    # --- what a rule calls --------------------------------------------------------------------------------------

    def apply(self, workers: Collection[int], weight: float, lr_factor: float = 1.0) -> None:
        """One step of the optimizer with weight * (the sum of these workers' gradients), at lr_factor * its lr."""
        with events.span("update", "compute"), torch.no_grad():
            for i, bucket in enumerate(self._buckets):
                first, *others = [self._gradients[w][i] for w in workers]
                bucket.buffer().copy_(first)
                for other in others:
                    bucket.buffer().add_(other)
                bucket.buffer().mul_(weight)
                for parameter, gradient in zip(
                    bucket.parameters(), bucket.gradients(), strict=True
                ):
                    parameter.grad = gradient
        learning_rates = [group["lr"] for group in self.optimizer.param_groups]
        for group in self.optimizer.param_groups:
            group["lr"] = group["lr"] * lr_factor
        self.optimizer.step()
        for group, lr in zip(self.optimizer.param_groups, learning_rates, strict=True):
            group["lr"] = lr
        staleness = tuple(self.version - self.pulled[w] for w in workers)
        self.version += 1
        self._record("apply", tuple(workers), staleness)

    def drop(self, worker: int) -> None:
        """The worker's gradient has come too late: it is not applied."""
        self._record("drop", (worker,), (self.version - self.pulled[worker],))

    def answer(self, workers: Collection[int]) -> None:
        """Sends these workers the parameters as they are now."""
        going = [w for w in workers if w in self.active]
        if not going:
            return
        now = [bucket.empty() for bucket in self._buckets]
        for flat, bucket in zip(now, self._buckets, strict=True):
            for view, parameter in zip(bucket.views(flat), bucket.parameters(), strict=True):
                view.copy_(parameter.detach())
        for worker in going:
            self._finish_answer(worker)
            self.pulled[worker] = self.version
            self._record("pull", (worker,), ())
            try:
                with p2p.operation("pull"):
                    works = [self.link.isend(flat, worker, PULL) for flat in now]
            except RuntimeError as error:
                self._broken.append((worker, error))
                continue
            self._going[worker] = [works, now]  # which must not change while they are under way
            self._expect(worker, [self._headers[worker]], is_header=True)

    # ------------------------------------------------------------------------------------------------------------

    def _finish_answer(self, worker: int) -> None:
        """The last answer to this worker has left; where it could not, its next message says so too."""
        works, _ = self._going.pop(worker, ([], None))
        with suppress(RuntimeError):
            for work in works:
                work.wait()

    def _record(self, what: str, workers: tuple[int, ...], staleness: tuple[int, ...]) -> None:
        done = Served(what, workers, self.version, staleness, events.now())
        self.report.served.append(done)

    def _lose_broken(self) -> None:
        while self._broken:  # to go on without one may be to find another one gone
            self._lose(*self._broken.pop())

    def _lose(self, worker: int, error: BaseException) -> None:
        """The connection to a worker is broken: the others go on."""
        if worker not in self.active:
            return
        self._coming.pop(worker, None)
        self.active.discard(worker)
        self._report_lost(worker, str(error).strip().splitlines()[0])
        self.rule.left(self, worker)

    def _report_lost(self, worker: int, why: str) -> None:
        number = plural(self.num_pushed[worker], "gradient")
        self.report.lost[worker] = f"rank {worker} was lost after {number} ({why})"
        left = plural(len(self.active - {worker}), "worker")
        warnings.warn(
            f"{self.report.lost[worker]}; training goes on with {left}",
            RuntimeWarning,
            stacklevel=2,
        )
