"""What ranks write of their tasks where all can read it: in the store where they have met, which no rank holds.

    queue/rank     where the owner takes from, and where thieves do: a hint, which may be lost
    claim/task     the ranks that have begun it; the last one does it: this decides
    done/task      its result, pickled

A task is claimed by an atomic compare-and-set of its key. So no two ranks do one, and no rank's death takes away what
was finished: what a dead rank had claimed and not finished is claimed anew, of what it had taken from a queue and not
claimed nothing is lost either.
"""

from __future__ import annotations

import pickle
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch.distributed as dist

from dtcourse import emulation, torch_private
from dtcourse.emulation import clock
from dtcourse.launch.deaths import Deaths
from dtcourse.plural import plural

NAP = 0.005  # seconds between two looks at what others still do
LOOK = 0.25  # and between two at who has died
LONG = 60.0  # seconds of waiting after which somebody should look after it


@dataclass(frozen=True)
class TaskLost:
    """In place of a result: each rank that began the task has died. ranks: which."""

    ranks: tuple[int, ...]


class TaskBoard:
    """What a rank sees and writes of all tasks, in the store."""

    def __init__(
        self, number: int, costs: Sequence[float] | None, name: str, attempts: int, same: str
    ) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.number, self.attempts = number, attempts
        root = torch_private.default_store()
        self.store: Any = dist.PrefixStore(f"dtcourse/tasks/{name}", root)
        self.deaths = Deaths(store=root)
        mine = f"{number} {same}"
        if self.store.add(f"joined/{self.rank}", 1) > 1:
            raise ValueError(
                f"this rank has done tasks named {name!r} already: give each call another name"
            )
        if (first := self._swap("of", "", mine)) != mine:
            raise ValueError(
                f"rank {self.rank} has {plural(number, 'task')}, and another one has {first.split()[0]}, or others, or "
                "with other costs or attempts: all ranks pass the same"
            )
        self.queues = _dealt(number, costs, self.size)
        each = [1.0] * number if costs is None else costs
        self.costs = [[0.0, *accumulate(each[task] for task in queue)] for queue in self.queues]
        self.words = [""] * self.size  # of the queues, as this rank has seen them last
        self.left = set(range(number))  # tasks that are not known to be done
        self.dead: dict[int, str] = {}
        self.looked = time.monotonic()

    def take(self) -> int | None:
        """A task that is this rank's now; None when all are done."""
        while (task := self._from_queues()) is not None:
            if self._claim(task, ""):
                return task
        since, idle, looked = emulation.now(), time.monotonic(), -LOOK
        waiting = sorted(self.left, reverse=True)
        while waiting:
            # Somebody has begun each of them, or has died between taking it from a queue and claiming it.
            if self.store.check([f"done/{waiting[-1]}"]):
                self.left.discard(waiting.pop())
                continue
            if time.monotonic() - looked > LOOK:
                looked = time.monotonic()
                for task in sorted(self.left):
                    if self._is_free(task):
                        clock.wait_until(emulation.now(), since)
                        return task
            if time.monotonic() - idle > LONG:
                idle = time.monotonic()
                warnings.warn(self._awaited(), stacklevel=3)
            time.sleep(NAP)
        clock.wait_until(emulation.now(), since)
        return None

    def finish(self, task: int, packed: bytes) -> None:
        """It is done. The first result stays: all ranks read the same, though a task were done twice."""
        self.store.compare_set(f"done/{task}", "", packed)
        self.left.discard(task)

    def summary(self) -> tuple[list[Any], list[list[int]]]:
        """When all are done: results, and the ranks that have begun each task."""
        results = [pickle.loads(self.store.get(f"done/{task}")) for task in range(self.number)]
        return results, [[int(rank) for rank in self._claims(task)] for task in range(self.number)]

    # --- queues: a word each, "front back rank", so that no two ranks ever write the same ------------------------

    def _from_queues(self) -> int | None:
        """The next of this rank's own; else the last of the queue with most work in it."""
        task = self._from(self.rank)
        while task is None:
            self._read_words()
            ends = [self._ends(r) for r in range(self.size)]
            work = [(self._cost(r, *ends[r]), ends[r][1] - ends[r][0]) for r in range(self.size)]
            fullest = max(range(self.size), key=work.__getitem__)
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

    def _cost(self, owner: int, front: int, back: int) -> float:
        return self.costs[owner][back] - self.costs[owner][front] if front < back else 0.0

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

    def _awaited(self) -> str:
        """Who has begun what is not done."""
        begun = {task: self._claims(task) for task in sorted(self.left)}
        named = [f"task {task} of rank {ranks[-1]}" for task, ranks in begun.items() if ranks]
        return (
            f"this rank has been waiting for {LONG:g} s for {', '.join(named[:8]) or 'tasks that nobody has begun'}, "
            "and nobody has been told that a rank died: does the task hang, or is the rank stopped?"
        )

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
