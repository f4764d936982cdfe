"""What a parameter server does with a gradient, and when it answers: who waits for whom is all that differs.

    Synchronous          applies the mean when every worker's gradient is there, then answers all: one process's step
    Asynchronous         applies each gradient as it comes, and answers its worker at once: nobody waits
    BoundedStaleness(s)  as asynchronous, but a worker more than s steps ahead of the slowest gets no answer yet
                         (stale synchronous parallel; Ho et al., NeurIPS 2013)
    BackupWorkers(b)     backup_workers.py

A gradient is *stale* by the number of updates that were made between the answer that it was computed from and its own.
Synchronous gradients are stale by 0; with p equal workers asynchronous ones by p - 1 on average. Every asynchronous
update is made with 1/p of the learning rate, so p of them go as far as one synchronous update. The factor is on the
learning rate and not on the gradient, since Adam does not see a gradient's scale, and weight decay has none.
An optimizer with a memory (momentum, Adam's moments) takes p updates for p steps: it forgets p times as fast.

A stale gradient points from where the model was. `inverse_staleness` makes its learning rate smaller (Zhang et al.,
arXiv 1511.05950, section 3.2: the learning rate divided by the staleness).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol


class Serving(Protocol):
    """What a rule sees of its server. Workers go by their ranks in the group.

    active:      workers that still take part
    num_workers: how many there were at the start
    num_pushed:  how many gradients each has sent
    version:     updates made so far
    pulled:      the version that each worker has had last
    """

    num_workers: int
    version: int

    @property
    def active(self) -> Collection[int]: ...
    @property
    def num_pushed(self) -> Mapping[int, int]: ...
    @property
    def pulled(self) -> Mapping[int, int]: ...
    def apply(self, workers: Collection[int], weight: float, lr_factor: float = 1.0) -> None: ...
    def drop(self, worker: int) -> None: ...
    def answer(self, workers: Collection[int]) -> None: ...


class UpdateRule(Protocol):
    """One server's rule; a server needs one of its own.

    arrival_decides: whether the order in which gradients come changes anything
    """

    arrival_decides: bool

    def check(self, num_workers: int) -> None:
        """Raises ValueError where the rule makes no sense for so many workers."""

    def received(self, server: Serving, worker: int) -> None:
        """The worker's gradient is there."""

    def left(self, server: Serving, worker: int) -> None:
        """The worker has ended, or is lost, and is active no more."""


class Synchronous:
    """Waits for the gradient of every worker that still takes part, applies their mean, answers them."""

    arrival_decides = False

    def __init__(self) -> None:
        self._here: list[int] = []

    def check(self, num_workers: int) -> None:
        pass

    def received(self, server: Serving, worker: int) -> None:
        self._here.append(worker)
        self._update(server)

    def left(self, server: Serving, worker: int) -> None:
        self._update(server)

    def _update(self, server: Serving) -> None:
        if self._here and set(self._here) >= set(server.active):
            here, self._here = sorted(self._here), []
            server.apply(here, weight=1 / len(here))
            server.answer(here)


def inverse_staleness(staleness: int) -> float:
    """1 / staleness, and 1 for a fresh gradient: what Zhang et al. multiply the learning rate by."""
    return 1 / max(1, staleness)


def constant(staleness: int) -> float:
    """1: the same learning rate for all gradients."""
    return 1.0


class Asynchronous:
    """Applies each gradient as it comes, with 1/p of the learning rate, and answers at once.

    lr_factor: staleness -> another factor of the learning rate: `constant`, or `inverse_staleness`
    """

    arrival_decides = True

    def __init__(self, lr_factor: Callable[[int], float] = constant) -> None:
        self.lr_factor = lr_factor

    def check(self, num_workers: int) -> None:
        pass

    def received(self, server: Serving, worker: int) -> None:
        staleness = server.version - server.pulled[worker]
        server.apply([worker], 1.0, self.lr_factor(staleness) / server.num_workers)
        self._answer(server, worker)

    def left(self, server: Serving, worker: int) -> None:
        pass

    def _answer(self, server: Serving, worker: int) -> None:
        server.answer([worker])


class BoundedStaleness(Asynchronous):
    """Applies each gradient as it comes; a worker more than `max_ahead` steps ahead of the slowest waits for it.

    max_ahead:   Ho et al.'s s. 0 is synchronous: all wait for the slowest in each step, and see the same model then
    lr_factor: as above

    Raises ValueError for a max_ahead below 0.
    """

    def __init__(self, max_ahead: int, lr_factor: Callable[[int], float] = constant) -> None:
        if isinstance(max_ahead, bool) or not isinstance(max_ahead, int) or max_ahead < 0:
            raise ValueError(
                f"a worker may be 0 steps or more ahead of the slowest; got max_ahead={max_ahead!r}"
            )
        super().__init__(lr_factor)
        self.max_ahead = max_ahead
        self._waiting: list[int] = []

    def left(self, server: Serving, worker: int) -> None:
        self._release(server)

    def _answer(self, server: Serving, worker: int) -> None:
        self._waiting.append(worker)
        self._release(server)

    def _release(self, server: Serving) -> None:
        """Answers those that wait and may go on, all with the same model."""
        slowest = min((server.num_pushed[w] for w in server.active), default=0)
        may = [w for w in self._waiting if server.num_pushed[w] - slowest <= self.max_ahead]
        self._waiting = [w for w in self._waiting if w not in may]
        server.answer(may)
