"""One step played through in the order of time: the decisions of the search's heuristic (search.py)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass

from dtcourse.pipeline_parallel.actions import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    Action,
    Schedule,
    looped,
)
from dtcourse.pipeline_parallel.simulate import Memory, Times


@dataclass
class _Rank:
    """How far a rank is: the next forward, backward-input and backward-weight; when it is free."""

    free: float = 0.0
    forward: int = 0
    backward: int = 0
    weight: int = 0
    last_was_forward: bool = False


class Step:
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
