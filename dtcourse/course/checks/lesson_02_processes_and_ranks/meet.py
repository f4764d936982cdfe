"""Strangers number themselves."""

from __future__ import annotations

import json
import os
import random
import time
from datetime import timedelta
from typing import Any

from dtcourse.course.judging import Answer, Each, Exercise, require
from dtcourse.course.judging.framework import CheckFailed

MEET = Exercise(
    "meet",
    lesson="02",
    title="Strangers number themselves",
    takes=("meet",),
    target="4 processes, 4 numbers, 4 addresses, with at most world_size + 3 requests to the store from each",
)


class _Presence:
    """What each process is doing, for all to see: a note per process, in a store that the answer does not see.

    So it can be proven, without a clock, that a process waits for what nobody will ever set, and a process can be
    made to come when another one waits, however slow the machine is.
    """

    WORKING, ASKING, RETURNED = "working", "asking again and again", "returned"

    def __init__(self, notes: Any, store: Any, rank: int, world_size: int) -> None:
        self._notes, self._store, self._rank, self._world_size = notes, store, rank, world_size
        self.say(self.WORKING)

    def say(self, what: str | list[str]) -> None:
        """One of the three words, or the keys that this process waits for."""
        self._notes.set(f"{self._rank}", json.dumps(what))

    def _of(self, rank: int) -> Any:
        return json.loads(self._notes.get(f"{rank}"))

    def wait_until_idle(self, rank: int) -> None:
        """Until that process waits for a key, asks again and again, or has returned."""
        while self._of(rank) == self.WORKING:
            time.sleep(0.005)

    def nobody_goes_on(self) -> bool:
        """Whether each process has returned, or waits for a key that is not set: then none of them ever will be."""
        before = [self._of(rank) for rank in range(self._world_size)]
        if any(what in (self.WORKING, self.ASKING) for what in before):
            return False
        # All of them were seen idle, one after the other. If none has gone on since then, none ever does.
        waiting = [keys for keys in before if keys != self.RETURNED]
        still = not any(self._store.check(keys) for keys in waiting)
        return still and before == [self._of(rank) for rank in range(self._world_size)]


class _WatchedStore:
    """A store that counts requests, and lets a moment pass after each answer, in which others may come first."""

    def __init__(self, store: Any, presence: _Presence, most: int, pause: float = 0.0) -> None:
        self._store, self._presence, self._most, self._pause = store, presence, most, pause
        self.requests = 0

    def _ask(self, operation: str, *args: Any) -> Any:
        self.requests += 1
        if self.requests == self._most + 1:
            self._presence.say(_Presence.ASKING)
        answer = getattr(self._store, operation)(*args)
        time.sleep(self._pause)
        return answer

    def _until_set(self, keys: list[str]) -> None:
        if self._store.check(keys):
            return
        self._presence.say(keys)
        while not self._store.check(keys):
            if self._presence.nobody_goes_on():
                missing = [key for key in keys if not self._store.check([key])]
                raise CheckFailed(
                    f"a process waited for the key {missing[0]!r}, and nobody ever set it. Either two processes "
                    "have the same number, and one has written over the other's address; then look at how a number "
                    "is found: can another process come between your reading and your writing? Or you wait for a "
                    "number that nobody has: which is the first, which the last?"
                )
            time.sleep(0.005)
        busy = _Presence.ASKING if self.requests > self._most else _Presence.WORKING
        self._presence.say(busy)

    def set(self, key: str, value: Any) -> None:
        """As the store's own, counted."""
        self._ask("set", key, value if isinstance(value, bytes) else str(value))

    def get(self, key: str) -> bytes:
        """As the store's own, counted; a wait in vain ends in a sentence."""
        self._until_set([key])
        return self._ask("get", key)

    def add(self, key: str, amount: int) -> int:
        """As the store's own, counted."""
        return self._ask("add", key, amount)

    def wait(self, keys: list[str], *timeout: timedelta) -> None:
        """As the store's own, counted; a wait in vain ends in a sentence."""
        self._until_set(keys)
        self._ask("wait", keys, *timeout)

    def check(self, keys: list[str]) -> bool:
        """As the store's own, counted."""
        return self._ask("check", keys)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """As the store's own, counted."""
        return self._ask("compare_set", key, expected, desired)


def _meeting(meet: Any, address: str, before_me: int | None, pause: float) -> dict[str, Any]:
    import torch.distributed as dist

    rank, world_size = dist.get_rank(), dist.get_world_size()
    place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    client = dist.TCPStore(*place, is_master=False)
    meeting = dist.PrefixStore("meeting", client)
    presence = _Presence(dist.PrefixStore("presence", client), meeting, rank, world_size)
    store = _WatchedStore(meeting, presence, _most_requests(world_size), pause)
    dist.barrier()  # from here on they are strangers
    if before_me is not None:
        presence.wait_until_idle(before_me)
    arrived = time.monotonic()
    number, everyone = meet(store, address, world_size)
    left = time.monotonic()
    presence.say(_Presence.RETURNED)
    texts = [one.decode() if isinstance(one, bytes) else one for one in everyone]
    return {
        "number": number,
        "addresses": texts,
        "requests": store.requests,
        "arrived": arrived,
        "left": left,
    }


def _most_requests(world_size: int) -> int:
    return world_size + 3


def _addresses(world_size: int) -> list[str]:
    return [f"10.0.0.{n}:{random.randrange(2000, 60000)}" for n in range(world_size)]


@MEET.check("a number for each, though all arrive in the same instant", points=3)
def check_numbers(answer: Answer) -> None:
    """No number is given twice, and they start at 0."""
    for world_size in (2, 4):
        run = answer.run(
            _meeting,
            world_size,
            Each(_addresses(world_size)),
            None,
            0.1,
            timeout=15,
        )
        numbers = sorted(one["number"] for one in run)
        require(
            len(set(numbers)) == world_size,
            f"{world_size} processes arrived at once, and got the numbers {numbers}: some share one. Between your "
            "reading a value and your writing it, another process may read the same. Which operation of a store "
            "does both in one step?",
        )
        require(
            numbers == list(range(world_size)),
            f"{world_size} processes should have the numbers 0 to {world_size - 1}; they got {numbers}. What does "
            "the first `add` return?",
        )


@MEET.check("everyone's address, in the order of the numbers", points=2)
def check_addresses(answer: Answer) -> None:
    """Each list holds at place n the address of number n."""
    for world_size in (3, 4):
        addresses = _addresses(world_size)
        run = answer.run(_meeting, world_size, Each(addresses), None, 0.0, timeout=15)
        right = [
            address
            for _, address in sorted((run[r]["number"], addresses[r]) for r in range(world_size))
        ]
        for one in run:
            require(
                one["addresses"] == right,
                f"number {one['number']} of {world_size} came back with the addresses {one['addresses']}; by number "
                f"they are {right}. Under which key does each process leave its address, and in which order do you "
                "read them?",
            )


@MEET.check("early ones wait for late ones, with few requests", points=3)
def check_waiting(answer: Answer) -> None:
    """The order of arrival decides; nobody returns before the last one came; nobody polls."""
    world_size = 4
    after = [
        1,
        2,
        3,
        None,
    ]  # the highest rank comes first, each other one when the one before it waits
    run = answer.run(
        _meeting, world_size, Each(_addresses(world_size)), Each(after), 0.0, timeout=15
    )
    numbers = [one["number"] for one in run]
    last = max(one["arrived"] for one in run)
    early = [one["number"] for one in run if one["left"] < last]
    require(
        not early,
        f"number {early[:1]} had returned before the last process came: it cannot know all addresses. What does "
        "`get` do with a key that nobody has set yet?",
    )
    order = sorted(range(world_size), key=lambda rank: run[rank]["arrived"])
    require(
        [numbers[rank] for rank in order] == list(range(world_size)),
        f"the processes arrived one after the other, and were numbered {[numbers[rank] for rank in order]}: numbers "
        "follow the order of arrival. These are strangers: nobody has told them a rank.",
    )
    most = max(one["requests"] for one in run)
    require(
        most <= _most_requests(world_size),
        f"a process asked the store {most} times; {_most_requests(world_size)} are enough for {world_size} "
        "processes. Do you ask again and again? `get` and `wait` wait for you.",
    )
