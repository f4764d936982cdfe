"""Messages of an all-reduce on a network, in time, as the emulated network would carry them: for diagnose_trace.

An emulated launch per trace would take a judge too long. A test holds these times to the emulated network's.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

# What a rank does: ("send", rank, bytes), ("receive", rank, bytes), or ("wait", ...) until its port is free.
Act = tuple[str, int, float]
Program = list[Act]
Message = tuple[int, int, float, float, float]  # source, target, bytes, left, arrived
WAIT: Act = ("wait", 0, 0.0)


def root(rank: int, p: int, n: float) -> Program:
    """Everyone to rank 0, and back."""
    if rank:
        return [("send", 0, n), WAIT, ("receive", 0, n)]
    others = range(1, p)
    return [("receive", r, n) for r in others] + [("send", r, n) for r in others]


def ring(rank: int, p: int, n: float) -> Program:
    """2 (p - 1) steps, in blocks."""
    one: Program = [("send", (rank + 1) % p, n / p), ("receive", (rank - 1) % p, n / p)]
    return one * (2 * (p - 1))


def tree(rank: int, p: int, n: float) -> Program:
    """Up a binomial tree, and down."""
    children, bit = [], 1
    while bit < p and not rank & bit:
        children += [rank + bit] if rank + bit < p else []
        bit *= 2
    up: Program = [("receive", child, n) for child in children]
    middle: Program = [("send", rank - bit, n), WAIT, ("receive", rank - bit, n)] if rank else []
    down: Program = [act for child in reversed(children) for act in (("send", child, n), WAIT)]
    return up + middle + down


def halving(rank: int, p: int, n: float) -> Program:
    """Halves, quarters, ... with partners ever nearer, and back. p is a power of two."""
    rounds: Program = []
    distance, size = p // 2, n / 2
    while distance:
        rounds.append(("send", rank ^ distance, size))
        distance, size = distance // 2, size / 2
    there = [*rounds, *reversed(rounds)]
    return [act for s in there for act in (s, ("receive", s[1], s[2]), WAIT)]


ROUTES: dict[str, Callable[[int, int, float], Program]] = {
    "root": root,
    "ring": ring,
    "tree": tree,
    "halving and doubling": halving,
}


def message_sizes(route: str, p: int, n: float) -> set[float]:
    """Bytes of the messages that all ranks send."""
    programs = (ROUTES[route](rank, p, n) for rank in range(p))
    return {nbytes for program in programs for kind, _, nbytes in program if kind == "send"}


@dataclass(frozen=True)
class Network:
    """alpha and gap in seconds, beta in seconds per byte, as the emulated network takes them; and what is wrong.

    slow:   (source, target, how many times as long a message takes from one to the other)
    late:   (rank, seconds after the others at which it begins)
    jitter: each message's times are off by up to this share
    """

    alpha: float
    gap: float
    beta: float
    slow: tuple[int, int, float] = (-1, -1, 1.0)
    late: tuple[int, float] = (-1, 0.0)
    jitter: float = 0.0

    def trace(self, route: str, p: int, n: float) -> list[Message]:
        """All messages of an all-reduce of n bytes, in an order that says nothing."""
        ranks = [_Rank(ROUTES[route](r, p, n)) for r in range(p)]
        if self.late[0] >= 0:
            ranks[self.late[0]].now = self.late[1]
        on_the_way: dict[tuple[int, int], list[tuple[float, float, float]]] = {}
        found: list[Message] = []
        moved = True
        while moved:
            moved = False
            for r, rank in enumerate(ranks):
                while rank.acts and self._act(r, rank, on_the_way, found):
                    moved = True
        random.shuffle(found)
        return found

    def seconds(self, route: str, p: int, n: float) -> float:
        """When the last message has arrived."""
        return max(arrived for *_, arrived in self.trace(route, p, n))

    def _act(
        self,
        r: int,
        rank: _Rank,
        on_the_way: dict[tuple[int, int], list[tuple[float, float, float]]],
        found: list[Message],
    ) -> bool:
        """The rank's next act; False where what it waits for has not been sent."""
        kind, other, nbytes = rank.acts[0]
        if kind == "receive":
            queue = on_the_way.get((other, r), [])
            if not queue:
                return False
            left, head, busy = queue.pop(0)
            arrived = rank.take(head, busy)
            rank.now = max(rank.now, arrived)
            found.append((other, r, nbytes, left, arrived))
        elif kind == "wait":
            rank.now = max(rank.now, rank.sent)
        else:
            longer = random.uniform(1 - self.jitter, 1 + self.jitter)
            longer *= self.slow[2] if (r, other) == self.slow[:2] else 1.0
            left, busy = max(rank.now, rank.sent), longer * (self.gap + nbytes * self.beta)
            rank.sent = left + busy
            on_the_way.setdefault((r, other), []).append((left, left + longer * self.alpha, busy))
        rank.acts.pop(0)
        return True


@dataclass
class _Rank:
    """How far a rank is: its time, when its sending port is free, and when its receiving port is busy."""

    acts: Program
    now: float = 0.0
    sent: float = 0.0
    receiving: list[tuple[float, float]] = field(default_factory=list)

    def take(self, head: float, busy: float) -> float:
        """A message occupies the receiving port from its head's arrival on, or from when there is room."""
        for start, end in sorted(self.receiving):
            if head + busy <= start:
                break
            head = max(head, end)
        self.receiving.append((head, head + busy))
        return head + busy
