"""Tasks that any rank may do: each rank has a queue, and one whose queue is empty takes from another's.

    def evaluate(split):                                   # on any rank, and alone: no collectives inside
        return accuracy(model, split)

    done = do_tasks(evaluate, splits)                      # on all ranks
    done.results                                           # of all tasks, in their order, on every rank

Nobody has to know how fast a rank is, or how long a task takes: whoever is done takes more (work stealing, Blumofe and
Leiserson 1999). The owner takes from the front of its queue and a thief from the back of the fullest one, so they
seldom meet. The last task ends at most one task of the slowest rank after the ideal time, total work / total speed: so
make tasks small, or say what they cost, and the large ones are begun first.

With launch(..., on_failure="continue") a rank may die. What it had begun is done again by another, and each task has
one result. A task is claimed in the store where the ranks have met (an atomic compare-and-set of its key), which no
rank holds, so no rank's death takes away what was finished:

    queue/rank     where the owner takes from, and where thieves do: a hint, which may be lost
    claim/task     who does it, and how many have begun it: this decides
    done/task      its result, pickled

What arrives first decides here, so emulated devices need launch(..., clock="wall"). No collective is called; each task
is a few keys in the store, and its result goes through it: keep it small.
"""

from __future__ import annotations

import pickle
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from dtcourse import emulation, torch_private
from dtcourse.emulation import clock
from dtcourse.launch.deaths import Deaths
from dtcourse.plural import plural

NAP = 0.005  # seconds between two looks at what others still do
LOOK = 0.25  # and between two at who has died


@dataclass(frozen=True)
class TaskFailed:
    """In place of a result: the task raised. It is not tried again.

    error: the exception's type and words;  trace: where
    """

    error: str
    trace: str


@dataclass(frozen=True)
class TaskLost:
    """In place of a result: each rank that began the task has died. ranks: which."""

    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Done:
    """What became of all tasks.

    results: in the order of the tasks; a TaskFailed or TaskLost where there is none
    by:      the rank that did each; that died last with it, where it was lost
    again:   tasks that were begun by a rank that died, and done by another
    """

    results: list[Any]
    by: list[int]
    again: list[int]

    @property
    def unfinished(self) -> list[int]:
        """The tasks without a result."""
        kinds = (TaskFailed, TaskLost)
        return [task for task, result in enumerate(self.results) if isinstance(result, kinds)]


def do_tasks(
    work: Callable[[Any], Any],
    tasks: Sequence[Any],
    costs: Sequence[float] | None = None,
    name: str = "tasks",
    attempts: int = 2,
) -> Done:
    """Does work(task) once for each task, on whichever rank is free. All ranks of the default group call it.

    work:     has no collective in it, since nobody knows who does what
    tasks:    the same on all ranks
    costs:    of each, in any unit, where they are known roughly: the large ones come first
    name:     of this call, where there are several in a launch: another one each time
    attempts: ranks that may die of a task before it is given up

    Raises ValueError for a name that was used already, for other tasks than another rank's, for costs that are not one
    for each, and on a virtual clock.
    """
    running = clock.installed()
    if running is not None and not running.arrival_decides:
        raise ValueError(
            'who is free first decides who takes a task, and a virtual clock cannot say it: launch(..., clock="wall")'
        )
    if attempts < 1 or (costs is not None and len(costs) != len(tasks)):
        raise ValueError(
            f"attempts is 1 or more and each of {plural(len(tasks), 'task')} has a cost; got {attempts} and "
            f"{plural(len(costs or ()), 'cost')}"
        )
    board = _Board(len(tasks), costs, name, attempts)
    while (task := board.take()) is not None:
        result: Any
        try:
            result = work(tasks[task])
            packed = pickle.dumps(result)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            packed = pickle.dumps(TaskFailed(said, traceback.format_exc()))
        board.finish(task, packed)
    return board.summary()


class _Board:
    """What a rank sees and writes of all tasks, in the store."""

    def __init__(
        self, number: int, costs: Sequence[float] | None, name: str, attempts: int
    ) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.number, self.attempts = number, attempts
        root = torch_private.default_store()
        self.store: Any = dist.PrefixStore(f"dtcourse/tasks/{name}", root)
        self.deaths = Deaths(store=root)
        mine = f"{number} {costs if costs is None else list(costs)}"
        if self.store.add(f"joined/{self.rank}", 1) > 1:
            raise ValueError(
                f"this rank has done tasks named {name!r} already: give each call another name"
            )
        if (first := self._swap("of", "", mine)) != mine:
            raise ValueError(
                f"rank {self.rank} has {plural(number, 'task')}, and another one has {first.split()[0]}, or other "
                "costs: all ranks pass the same"
            )
        self.queues = _dealt(number, costs, self.size)
        self.words = [""] * self.size  # of the queues, as this rank has seen them last
        self.left = set(range(number))  # tasks that are not known to be done
        self.dead: dict[int, str] = {}
        self.looked = time.monotonic()

    def take(self) -> int | None:
        """A task that is this rank's now; None when all are done."""
        while (task := self._from_queues()) is not None:
            if self._claim(task, ""):
                return task
        since = emulation.now()
        while self.left:
            # Somebody has begun each of them, or has died between taking it from a queue and claiming it.
            for task in sorted(self.left):
                if self.store.check([f"done/{task}"]):
                    self.left.discard(task)
                elif self._is_free(task):
                    clock.wait_until(emulation.now(), since)
                    return task
            if self.left:
                time.sleep(NAP)
        clock.wait_until(emulation.now(), since)
        return None

    def finish(self, task: int, packed: bytes) -> None:
        """It is done."""
        self.store.set(f"done/{task}", packed)
        self.left.discard(task)

    def summary(self) -> Done:
        """When all are done."""
        results, by, again = [], [], []
        for task in range(self.number):
            results.append(pickle.loads(self.store.get(f"done/{task}")))
            begun = [int(rank) for rank in self._claims(task)]
            by.append(begun[-1])
            if len(begun) > 1 and not isinstance(results[-1], TaskLost):
                again.append(task)
        return Done(results, by, again)

    # --- queues: a word each, "front back rank", so that no two ranks ever write the same ------------------------

    def _from_queues(self) -> int | None:
        """The next of this rank's own; else the last of the fullest."""
        task = self._from(self.rank)
        while task is None:
            self._read_words()
            ends = [self._ends(r) for r in range(self.size)]
            fullest = max(range(self.size), key=lambda r: ends[r][1] - ends[r][0])
            if ends[fullest][0] == ends[fullest][1]:
                return None
            task = self._from(fullest)
        return task

    def _from(self, owner: int) -> int | None:
        queue = self.queues[owner]
        while True:
            front, back = self._ends(owner)
            if front >= back:
                return None
            own = owner == self.rank
            ends = (front + 1, back) if own else (front, back - 1)
            new = f"{ends[0]} {ends[1]} {self.rank}"
            self.words[owner] = self._swap(f"queue/{owner}", self.words[owner], new)
            if self.words[owner] == new:
                return queue[front if own else back - 1]

    def _ends(self, owner: int) -> tuple[int, int]:
        word = self.words[owner]
        front, back = word.split()[:2] if word else (0, len(self.queues[owner]))
        return int(front), int(back)

    def _read_words(self) -> None:
        for owner in range(self.size):
            if self.store.check([key := f"queue/{owner}"]):
                self.words[owner] = self.store.get(key).decode()

    # --- claims: the ranks that have begun a task, the last one does it --------------------------------------------

    def _claims(self, task: int) -> list[str]:
        key = f"claim/{task}"
        return self.store.get(key).decode().split() if self.store.check([key]) else []

    def _claim(self, task: int, before: str) -> bool:
        mine = f"{before} {self.rank}".strip()
        return self._swap(f"claim/{task}", before, mine) == mine

    def _is_free(self, task: int) -> bool:
        """Whether it was nobody's, or a dead rank's, and is this one's now."""
        begun = self._claims(task)
        if not begun:
            return self._claim(task, "")
        if int(begun[-1]) == self.rank or int(begun[-1]) not in self._dead():
            return False
        # A result may have come before the death was told.
        if self.store.check([f"done/{task}"]):
            return False
        if len(begun) >= self.attempts:
            self.finish(task, pickle.dumps(TaskLost(tuple(map(int, begun)))))
            return False
        return self._claim(task, " ".join(begun))

    def _dead(self) -> dict[int, str]:
        if time.monotonic() - self.looked > LOOK:
            self.looked = time.monotonic()
            self.dead = self.deaths.read()
        return self.dead

    def _swap(self, key: str, expected: str, desired: str) -> str:
        return self.store.compare_set(key, expected, desired).decode()


def _dealt(number: int, costs: Sequence[float] | None, size: int) -> list[list[int]]:
    """Each rank's queue: neighbours, or by falling costs, so that the large ones are begun first."""
    if costs is not None:
        order = sorted(range(number), key=lambda task: -costs[task])
        return [order[rank::size] for rank in range(size)]
    firsts = [rank * number // size for rank in range(size + 1)]
    return [list(range(firsts[rank], firsts[rank + 1])) for rank in range(size)]
