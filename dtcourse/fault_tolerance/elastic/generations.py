"""Who trains together, and when that changes: what workers and the job tell each other through a store.

A generation is a group of workers that train together. When one of them dies, leaves or joins, all close their
connections and ask for the next one; the job answers all that ask with the same list, once nobody is missing.

    worker   ask/3/0      "I have step 7"              3 is the worker's number, 0 counts its questions
    job      answer/3/0   generation 2 is workers 0, 3, 4
    job      change/2     somebody waits to join generation 2, or is asked to leave: looked at between steps
    worker   left/2       a collective of generation 2 failed here: nobody need wait for this one's connection

The store is the job's own, as the rendezvous of a launch is, so no worker's death takes it away. Keys are written once.
"""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import Any, NamedTuple

from dtcourse.launch import deaths, rendezvous

_LIMIT = timedelta(seconds=60)
_TICK = 0.01
BEGUN = "begun"  # set when a step has been done: the state is worth something from then on


class Question(NamedTuple):
    """What a worker says of itself when it asks. step: whose state it has, None for none;  done: it needs no more."""

    step: int | None
    done: bool


class Answer(NamedTuple):
    """What it hears. members: the workers of a generation by rank;  end: why there is none for it."""

    generation: int
    members: tuple[int, ...]
    end: str = ""


class WorkersEnd:
    """What a worker has of the store."""

    def __init__(self, where: str, worker: int) -> None:
        self.worker, self.where = worker, where
        self.store: Any = rendezvous.join(where, _LIMIT)
        self._asked = 0
        self._members: tuple[int, ...] = ()
        self._deaths = deaths.Deaths(where)

    def ask(self, step: int | None, done: bool) -> Answer:
        """Waits until the job has put together the next generation. Without a limit: the job's end is this worker's."""
        key = f"{self.worker}/{self._asked}"
        self._asked += 1
        self.store.set(f"ask/{key}", json.dumps([step, done]))
        while not self.store.check([f"answer/{key}"]):
            time.sleep(_TICK)
        generation, members, end = json.loads(self.store.get(f"answer/{key}"))
        self._members = tuple(members)
        return Answer(generation, self._members, end)

    def is_to_change(self, generation: int) -> bool:
        """Whether somebody waits to join, or is to leave."""
        return bool(self.store.check([f"change/{generation}"]))

    def note_left(self, generation: int) -> None:
        """This worker lives, and will make no connection in that generation any more."""
        self.store.set(f"left/{generation}", str(self.worker))

    def missing(self, generation: int) -> str | None:
        """Why a connection of that generation may never be made, in words; None: no reason is known."""
        if dead := self.read():
            return "; ".join(f"rank {rank} {how}" for rank, how in dead.items())
        if self.store.check([key := f"left/{generation}"]):
            return f"worker {self.store.get(key).decode()} has left this generation"
        return None

    def note_begun(self) -> None:
        """The state is no longer that of a fresh start."""
        self.store.set(BEGUN, "")

    def has_begun(self) -> bool:
        """Whether there ever was one that is not."""
        return bool(self.store.check([BEGUN]))

    def read(self) -> dict[int, str]:
        """Who of this generation has died, by rank of its group, and how: what lost_peers.py asks."""
        dead = self._deaths.read()
        return {rank: dead[w] for rank, w in enumerate(self._members) if w in dead}

    def dead_workers(self) -> dict[int, str]:
        """All that have died, by worker."""
        return self._deaths.read()


class JobsEnd:
    """What the job has of the store. Not for two threads at once."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._visit = rendezvous.Visit(where, _LIMIT)
        self._answered: dict[int, int] = {}  # by worker: how many of its questions

    def question(self, worker: int) -> Question | None:
        """What a worker asks now; None: nothing."""
        key = f"ask/{worker}/{self._answered.get(worker, 0)}"
        if not self._visit.store.check([key]):
            return None
        return Question(*json.loads(self._visit.store.get(key)))

    def answer(self, worker: int, answer: Answer) -> None:
        """Answers it."""
        number = self._answered.get(worker, 0)
        self._answered[worker] = number + 1
        self._visit.store.set(f"answer/{worker}/{number}", json.dumps(answer))

    def ask_for_change(self, generation: int) -> None:
        """Has all of a generation ask for the next one after their step."""
        self._visit.store.set(f"change/{generation}", "")

    def close(self) -> None:
        """Asks and answers no more."""
        self._visit.close()

    def tell_of_death(self, worker: int, how: str) -> None:
        """To those that may wait for it in a collective."""
        deaths.tell(self._where, worker, how)
