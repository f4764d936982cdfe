"""A schedule for given times and memory: the zero-bubble paper's heuristic (2401.10241, section 3.1).

The handcrafted schedules are for F = I = W and free transfers. Where that is not so, the order that is best depends on
the numbers. The heuristic plays the step through, rank by rank in the order of time, and decides whenever a rank is
free:

    backward-input, if its gradient is there       others wait for it
    else a forward, if there is room for it        it fills the bubble before the first backward, and feeds the next
                                                   ranks
    else a backward-weight                         it fills any other gap, and gives room back

Four choices are open, and which is best is found by trying: how many forwards a rank takes in before its first
backward; whether in the steady state a forward or a backward-input goes first where both could; whether a forward may
delay a gradient that is on its way; and how much of a gap that is shorter than W is worth filling. Each try is
simulated, and the best one is returned.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from dtcourse.pipeline_parallel.actions import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    Action,
    Schedule,
    looped,
)
from dtcourse.pipeline_parallel.schedules import at_least
from dtcourse.pipeline_parallel.simulate import Memory, Simulation, Times, simulate
from dtcourse.pipeline_parallel.validate import stored
from dtcourse.pipeline_parallel.zero_bubble import zb_h1, zb_h2

# In the steady state: which goes first where both could; "in turn" waits for the one whose turn it is.
STEADY = ("backward", "forward", "in turn")
PARTS = (0.0, 0.5, 1.0)
KEPT = 12


def search(
    times: Times,
    stages: int,
    micro_batches: int,
    memory_limit: float,
    memory: Memory | None = None,
) -> Schedule:
    """The best schedule that is found, for one stage a rank: the smallest `Simulation.cost`,
    then the smallest makespan.

    memory_limit: the most that a rank may have stored, in the unit of `memory`; by default in activations of one
                  micro-batch, each counted until its backward-weight
    memory:       what a forward stores and a backward-input leaves

    ZB-H1 and ZB-H2 are among the tries wherever they fit, so the result is never worse than those.

    Raises ValueError if not even one micro-batch fits.
    """
    at_least(1, stages, "stage")
    at_least(1, micro_batches, "micro-batch")
    memory = memory or Memory()
    if memory_limit < memory.stored:
        raise ValueError(
            f"A limit of {memory_limit:g} holds no forward, which "
            f"stores {memory.stored:g}; no schedule can do with less."
        )
    limited = Memory(memory.stored, memory.kept, memory_limit)
    choices = _choices(times, stages, micro_batches, limited)
    tries = [zb_h1(stages, micro_batches), zb_h2(stages, micro_batches)]
    tries += [_play(times, stages, micro_batches, limited, *one) for one in choices]
    found = [simulate(one, times, limited) for one in tries]
    return min((one for one in found if one.fits), key=_goodness).schedule


def _goodness(found: Simulation) -> tuple[float, float, float]:
    return found.cost, found.makespan, max(found.peak_memory)


def _choices(
    times: Times, stages: int, micro_batches: int, memory: Memory
) -> list[tuple[Any, ...]]:
    """All of them; for many micro-batches those that were good with fewer,
    since what they differ in is begin and end.
    """
    most = int(memory.limit / memory.stored) if memory.limit and memory.stored else micro_batches
    choices = list(product(_warmups(stages, most), STEADY, PARTS, PARTS))
    short = 4 * stages
    if micro_batches <= short:
        return choices
    tried = [
        (_goodness(simulate(_play(times, stages, short, memory, *one), times, memory)), n)
        for n, one in enumerate(choices)
    ]
    return [choices[n] for _, n in sorted(tried)[:KEPT]]


def _play(times: Times, stages: int, micro_batches: int, memory: Memory, *choices: Any) -> Schedule:
    lists = _Step(times, stages, micro_batches, memory, *choices).play()
    loose = Schedule("searched", lists, looped(stages), micro_batches, [micro_batches] * stages)
    return replace(loose, memory_bound=stored(loose))


def _warmups(stages: int, most: int) -> list[list[int]]:
    """By rank, how many forwards may precede the first backward-input: 1F1B's, ZB-H2's, steps between them,
    no limit.
    """
    ahead = [stages - 1 - rank for rank in range(stages)]
    between = [[min(most, 1 + tenths * n // 10) for n in ahead] for tenths in range(10, 23, 2)]
    return [*between, [min(most, 1 + 5 * n // 2) for n in ahead], [most] * stages]


@dataclass
class _Rank:
    """How far a rank is: the next forward, backward-input and backward-weight; when it is free."""

    free: float = 0.0
    forward: int = 0
    backward: int = 0
    weight: int = 0
    last_was_forward: bool = False


class _Step:
    """One step, played through with one set of choices.

    warmup:        by rank, the most forwards before the first backward-input
    steady: whether, of a forward and a backward-input that both could run, the forward does
    hold:          a forward does not start if a gradient arrives within this part of its time
    worth:         a backward-weight starts if the next arrival is at least this part of its time away
    """

    def __init__(
        self,
        times: Times,
        stages: int,
        micro_batches: int,
        memory: Memory,
        warmup: list[int],
        steady: str,
        hold: float,
        worth: float,
    ) -> None:
        template = Schedule("", [[]] * stages, looped(stages), micro_batches, [])
        self.seconds = times.per_stage(template)
        self.times, self.stages, self.micro_batches, self.memory = (
            times,
            stages,
            micro_batches,
            memory,
        )
        self.warmup, self.steady, self.hold, self.worth = warmup, steady, hold, worth
        never = [math.inf] * micro_batches
        self.forward_arrives = [[0.0] * micro_batches] + [list(never) for _ in range(stages - 1)]
        self.backward_arrives = [list(never) for _ in range(stages)]
        self.ranks = [_Rank() for _ in range(stages)]
        self.lists: list[list[Action]] = [[] for _ in range(stages)]

    def play(self) -> list[list[Action]]:
        """The lists of actions."""
        moments = [(0.0, rank) for rank in range(self.stages)]
        while moments:
            now, rank = heapq.heappop(moments)
            state = self.ranks[rank]
            if state.weight == self.micro_batches or now < state.free:
                continue  # done; or woken while busy, and it will look again when it is free
            kind = self._choose(rank, now)
            if kind is None:
                if (later := self._arrival(rank, now)) < math.inf:
                    heapq.heappush(moments, (later, rank))
                continue  # whoever sends something wakes it
            for moment in self._perform(rank, kind, now):
                heapq.heappush(moments, moment)
        return self.lists

    def _choose(self, rank: int, now: float) -> str | None:
        state = self.ranks[rank]
        forward = self._may_forward(rank) and self.forward_arrives[rank][state.forward] <= now
        backward = (
            state.backward < state.forward and self.backward_arrives[rank][state.backward] <= now
        )
        forwards_turn = not state.last_was_forward and state.forward < self.micro_batches
        if self.steady == "in turn" and state.backward:
            forward, backward = forward and forwards_turn, backward and not forwards_turn
        if forward and backward and self.steady == "forward":
            return FORWARD if forwards_turn else BACKWARD_INPUT
        if backward:
            return BACKWARD_INPUT
        gap = self._arrival(rank, now) - now
        if forward and gap >= self.hold * self.seconds[FORWARD][rank]:
            return FORWARD
        if state.weight == state.backward:
            return None
        return BACKWARD_WEIGHT if gap >= self.worth * self.seconds[BACKWARD_WEIGHT][rank] else None

    def _may_forward(self, rank: int) -> bool:
        """Whether a forward is left, has room, and is not held back before the first backward."""
        state = self.ranks[rank]
        if state.forward == self.micro_batches:
            return False
        if state.backward == 0 and state.forward >= self.warmup[rank]:
            return False
        stored, kept = state.forward - state.backward, state.backward - state.weight
        room = (stored + 1) * self.memory.stored + kept * self.memory.after_input
        return self.memory.limit is None or room <= self.memory.limit * (1 + 1e-12)

    def _arrival(self, rank: int, now: float) -> float:
        """When the next input comes, of those that are on their way; infinity if none is."""
        state = self.ranks[rank]
        moments = []
        if self._may_forward(rank):
            moments.append(self.forward_arrives[rank][state.forward])
        if state.backward < state.forward:
            moments.append(self.backward_arrives[rank][state.backward])
        return min((one for one in moments if one > now), default=math.inf)

    def _perform(self, rank: int, kind: str, now: float) -> Iterator[tuple[float, int]]:
        """Put it into the rank's list; yield when somebody has to look again."""
        state = self.ranks[rank]
        end = now + self.seconds[kind][rank]
        sends = False
        if kind == FORWARD:
            i, state.forward = state.forward, state.forward + 1
            if rank + 1 < self.stages:
                sends = True
                self.forward_arrives[rank + 1][i] = end + self.times.transfer
                yield end + self.times.transfer, rank + 1
            else:
                self.backward_arrives[rank][i] = end
        elif kind == BACKWARD_INPUT:
            i, state.backward = state.backward, state.backward + 1
            if rank > 0:
                sends = True
                self.backward_arrives[rank - 1][i] = end + self.times.transfer
                yield end + self.times.transfer, rank - 1
        else:
            i, state.weight = state.weight, state.weight + 1
        if kind != BACKWARD_WEIGHT:
            state.last_was_forward = kind == FORWARD
        self.lists[rank].append(Action(rank, kind, i))
        state.free = end + (self.times.transfer if sends and self.times.sender_waits else 0.0)
        yield state.free, rank
