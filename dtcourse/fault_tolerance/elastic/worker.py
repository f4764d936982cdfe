"""What a worker of an elastic job does: trains while its generation lasts, and carries the state into the next one.

    def train(elastic):                                     # in each worker
        return elastic.run(build, step, last=200).losses

build() makes the run for the group that there is now: it wraps the model anew, and gives each rank its share of the
samples. step(run, n) is the n-th step. Between steps each worker keeps a copy of the state in memory, whole once it is
there. After a change the newest copy that any of them has goes to all, by a broadcast: also to who has just joined. No
file is read.

Ranks that hold the same state are never more than a step apart: a step's collectives need all of them. The newest copy
is as right as an older one, as who has it has been through all collectives of that step with everybody.

Of a model that is cut no rank has the state (in_parts=True): then each rank's neighbour keeps a copy (peer_copies.py),
a new worker takes a lost one's place and its part, and the number of workers stays.

Memory: one copy of the state on each worker, and a second one while it is taken.  Messages: after every `every` steps
an all-reduce of four bytes; after a change a broadcast of the state.

Source: Horovod's elastic training (docs/elastic), whose `state.commit()` is this copy. PyTorch's torchrun ends all
ranks instead, and starts them again at the new size, from a file: restarts.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist

from dtcourse.fault_tolerance import packed
from dtcourse.fault_tolerance.elastic import groups
from dtcourse.fault_tolerance.elastic.generations import WorkersEnd
from dtcourse.fault_tolerance.holdings import StateLost
from dtcourse.fault_tolerance.peer_copies import PeerCopies
from dtcourse.parameters.agreement import on_any_rank


class HasState(Protocol):
    """A run: what build() makes."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any) -> object: ...


Run = TypeVar("Run", bound=HasState)
CPU = torch.device("cpu")
IN_VAIN = 5  # generations of the same workers without a step done: then it is no lost rank


class Elastic:
    """A worker's part in its job, which the job gives to the function it runs.

    worker:     this worker's number, the same for its whole life; its rank changes
    generation: the one it trains in
    members:    the workers of that, by rank
    step:       the last one whose state this worker has; None before it has any
    left:       whether it has been asked to leave, and has
    """

    def __init__(self, end: WorkersEnd) -> None:
        self._end = end
        self.worker = end.worker
        self.generation, self.members = -1, tuple[int, ...]()
        self.step: int | None = None
        self.left = False
        self._kept: Any = None
        self._copies: PeerCopies | None = None  # where the state is in parts
        self._noted = False

    def run(
        self,
        build: Callable[[], Run],
        step: Callable[[Run, int], object],
        last: int,
        every: int = 1,
        load: Callable[[Run], int] | None = None,
        in_parts: bool = False,
    ) -> Run | None:
        """Trains to step `last`, with whoever is there; returns the run, or None to a worker that was never needed.

        build: makes a run from the default group as it is now, of the same first weights on all. Its state_dict() is
               the same on all ranks (replicated.py), and so is a step's outcome
        step:  does the n-th step, 1 the first, and leaves what it has learned in the run
        every: keep a copy, and look for a change, after every so many steps
        load:  reads a file into the run on all ranks, and returns its step (0: there is none): asked at the start, and
               where nobody has the state any more
        in_parts: state_dict() is of this rank alone (rank_state.py): each rank's neighbour keeps a copy of it

        A worker that is asked to leave returns after the step at which it did: `left` is true then.
        Raises StateLost where nobody has the state any more and there is no `load`; what `step` raises, unless a rank
        was lost.
        """
        for name, value in (("last", last), ("every", every)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is a number of steps, 1 or more; got {value!r}")
        if every > last:
            raise ValueError(
                f"every={every} is more than the {last} steps: no copy would be kept, and a lost rank would cost all"
            )
        run: Run | None = None
        vain = 0
        while True:
            before = (self.step, self.members)
            answer = self._end.ask(self.step, self.step is not None and self.step >= last)
            if answer.end:
                self.left = answer.end == "leave"
                return run
            self.generation, self.members = answer.generation, answer.members
            vain = vain + 1 if before == (self.step, self.members) else 0
            try:
                groups.form(
                    self._end.store,
                    self.generation,
                    self.members.index(self.worker),
                    len(self.members),
                    partial(self._end.missing, self.generation),
                )
                run = build()
                (self._share_parts if in_parts else self._share)(run, load)
                self._steps(run, step, last, every)
            except RuntimeError as error:
                if not groups.is_loss(error) or vain >= IN_VAIN:
                    raise
                self._end.note_left(self.generation)
            finally:
                groups.leave()

    def _share(self, run: HasState, load: Callable[[Any], int] | None) -> None:
        """Gives the newest state that any worker has to all."""
        begun = self._end.has_begun()
        steps: list[int] = [-1] * len(self.members)
        dist.all_gather_object(steps, -1 if self.step is None else self.step)
        newest = max(steps)
        if newest < 0:
            self._keep(run, self._first(run, load, begun))
            return
        kept = packed.broadcast(self._kept, steps.index(newest)) if len(steps) > 1 else self._kept
        run.load_state_dict(packed.copied(kept))
        self.step, self._kept = newest, kept

    def _share_parts(self, run: HasState, load: Callable[[Any], int] | None) -> None:
        """Gives each rank its part of the newest state that is complete."""
        begun = self._end.has_begun()
        before = None if self._copies is None else self._copies.kept
        copies = PeerCopies(run, kept=before)
        try:
            found = copies.recover()
        except StateLost:
            if load is None:
                raise
            found = None
        # Only now: who is interrupted while it recovers still has what it had before.
        self._copies, self.step = copies, found
        if found is None:
            self._keep(run, self._first(run, load, begun))

    def _first(self, run: HasState, load: Callable[[Any], int] | None, begun: bool) -> int:
        """The step after which the run begins, where no worker has a state.

        begun: asked before all have said what they have: after that a faster rank may do a first step of this start
        """
        if load is not None:
            return load(run)
        if begun:
            raise StateLost(
                f"steps had been done, and all workers that had the state are gone: {_said(self._end.dead_workers())}. "
                "It was in memory only. Give run() a load=, which reads a checkpoint"
            )
        return 0

    def _steps(self, run: Any, step: Callable[[Any, int], object], last: int, every: int) -> None:
        assert self.step is not None, "it has been shared"
        for number in range(self.step + 1, last + 1):
            step(run, number)
            if number % every == 0 or number == last:
                self._keep(run, number)
                if on_any_rank([self._end.is_to_change(self.generation)], None, CPU)[0]:
                    return

    def _keep(self, run: HasState, number: int) -> None:
        """The copy takes the last one's place when it is whole."""
        if self._copies is not None:
            self._copies.after(number)
        else:
            self._kept = packed.copied(run.state_dict())
        self.step = number
        if number and not self._noted and dist.get_rank() == 0:
            self._end.note_begun()
            self._noted = True


def _said(dead: dict[int, str]) -> str:
    """The first of them, in words."""
    words = [f"worker {worker} {how}" for worker, how in list(dead.items())[:4]]
    return "; ".join([*words, *([f"{len(dead) - 4} more"] if len(dead) > 4 else [])])
