"""When each action of a schedule runs: its makespan, bubbles and memory, by rules, on no machine.

An action starts when its rank is free and what it needs has arrived. That is all; there is no other policy, since the
schedule has decided the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from dtcourse.events import Event, HasTimeline, Timeline, timeline_of
from dtcourse.pipeline_parallel.actions import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    Action,
    Schedule,
)
from dtcourse.pipeline_parallel.validate import peak_memory, validate


@dataclass(frozen=True)
class Times:
    """Seconds of one micro-batch.

    forward, backward_input, backward_weight: of all that a rank holds: one number for all ranks, one per rank, or one
                per stage. Of the first two an action of a stage takes 1/v, where the rank holds v stages; one per stage
                is as it is
    transfer:   from the end of an action to the earliest start of the one that needs it on another rank. Both ranks can
                work meanwhile, or the sender cannot (`sender_waits`)
    optimizer:  after a rank's last action; with `barrier`, after everybody's. Without a flush (PipeDream) it follows
                each backward instead, once its gradient has left, with 1/v of this where the rank holds v stages
    """

    forward: float | Sequence[float] = 1.0
    backward_input: float | Sequence[float] = 1.0
    backward_weight: float | Sequence[float] = 1.0
    transfer: float = 0.0
    sender_waits: bool = False
    optimizer: float = 0.0
    barrier: bool = True

    def per_stage(self, schedule: Schedule) -> dict[str, list[float]]:
        """By kind, the seconds of an action of each stage. A full backward is one action, of both lengths.

        Raises ValueError for negative times, or a list that is neither one per rank nor one per stage.
        """
        seconds = {
            kind: _per_stage(name, getattr(self, name), schedule)
            for kind, name in (
                (FORWARD, "forward"),
                (BACKWARD_INPUT, "backward_input"),
                (BACKWARD_WEIGHT, "backward_weight"),
            )
        }
        halves = zip(seconds[BACKWARD_INPUT], seconds[BACKWARD_WEIGHT], strict=True)
        seconds[BACKWARD] = [first + second for first, second in halves]
        for name in ("transfer", "optimizer"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is 0 seconds or more; got {getattr(self, name)}.")
        return seconds


@dataclass(frozen=True)
class Memory:
    """Bytes (or any unit) of one micro-batch in all stages of a rank. Weights do not count,
    nor do PipeDream's old versions.

    stored: by its forward, until its backward
    kept:   of that, after backward-input, for backward-weight; None: all of it
    limit:  what a rank has
    """

    stored: float = 1.0
    kept: float | None = None
    limit: float | None = None

    def __post_init__(self) -> None:
        if not self.stored >= 0 or not 0 <= self.after_input <= self.stored:
            raise ValueError(
                "A forward stores 0 or more, and backward-input leaves no more than that; got "
                f"stored={self.stored}, kept={self.kept}."
            )

    @property
    def after_input(self) -> float:
        """What backward-input leaves."""
        return self.stored if self.kept is None else self.kept


@dataclass(frozen=True)
class Simulation(HasTimeline):
    """What `simulate` found. By rank and in the schedule's order: `starts` and `ends`,
    in seconds from the step's start.

    optimizer:      seconds of a rank's optimizer's step after its last action; 0 without a flush
    optimizer_ends: by rank, when its last one is over
    work:           by rank, the seconds in which it performs actions, and updates in between where there is no flush
    peak_memory:    by rank, in the unit of the `memory` given (else: activations of one micro-batch in all its stages)
    memory:         the one given
    """

    schedule: Schedule
    starts: list[list[float]]
    ends: list[list[float]]
    optimizer: float
    optimizer_ends: list[float]
    work: list[float]
    peak_memory: list[float]
    memory: Memory

    @property
    def name(self) -> str:
        """The schedule's."""
        return self.schedule.name

    @property
    def makespan(self) -> float:
        """Seconds of the whole step, the optimizer's included."""
        return max(self.optimizer_ends)

    @property
    def cost(self) -> float:
        """Seconds from a rank's first action to the end of its last one (without a flush, of its last update), of the
        rank where that is longest.

        It is what a step takes where steps follow each other without a barrier (2401.10241, section 5.3).
        """
        over = [end[-1] for end in self.ends] if self.schedule.flush else self.optimizer_ends
        return max(end - start[0] for start, end in zip(self.starts, over, strict=True))

    @property
    def bubble_rate(self) -> float:
        """The part of `cost` that is no work: (cost - m (F + I + W)) / cost. With unequal ranks,
        the most laden one's work.
        """
        return (self.cost - max(self.work)) / self.cost if self.cost else 0.0

    @property
    def idle_share(self) -> list[float]:
        """By rank, the part of the step in which it does nothing: neither an action nor the optimizer's step."""
        return [
            1 - (work + self.optimizer) / self.makespan if self.makespan else 0.0
            for work in self.work
        ]

    @property
    def fits(self) -> bool:
        """Whether every rank stays within the memory's limit."""
        limit = self.memory.limit
        return limit is None or max(self.peak_memory) <= limit * (1 + 1e-12)

    @cached_property
    def timeline(self) -> Timeline:
        """The same as events, for a picture. Kind "compute", name "0F3", and in words as detail; last "optimizer"."""
        events = [
            Event(repr(action), "compute", rank, start, end, detail=action.detail)
            for rank, actions in enumerate(self.schedule)
            for action, start, end in zip(actions, self.starts[rank], self.ends[rank], strict=True)
        ]
        if self.optimizer:
            detail = {"action": "optimizer"}
            events += [
                Event("optimizer", "compute", rank, end - self.optimizer, end, detail=detail)
                for rank, end in enumerate(self.optimizer_ends)
            ]
        return Timeline(events)

    @cached_property
    def memory_levels(self) -> list[list[tuple[float, float]]]:
        """By rank, what it has stored over time: (seconds, stored from then on), in the unit of `peak_memory`."""
        chunks, memory = self.schedule.num_chunks, self.memory
        # A forward stores when it starts; the others free when they end.
        freed = {
            BACKWARD: memory.stored,
            BACKWARD_INPUT: memory.stored - memory.after_input,
            BACKWARD_WEIGHT: memory.after_input,
        }
        levels = []
        for rank, actions in enumerate(self.schedule):
            now, steps = 0.0, [(0.0, 0.0)]
            for (_, kind, _), start, end in zip(
                actions, self.starts[rank], self.ends[rank], strict=True
            ):
                now += memory.stored if kind == FORWARD else -freed[kind]
                steps.append((start if kind == FORWARD else end, now / chunks))
            levels.append(steps)
        return levels

    def __repr__(self) -> str:
        return (
            f"<{self.schedule.name}: makespan {self.makespan:.6g}, bubble rate {self.bubble_rate:.1%}, "
            f"peak memory {max(self.peak_memory):g}>"
        )


def simulate(
    schedule: Schedule, times: Times, memory: Memory | None = None, order: Sequence[Action] | None = None
) -> Simulation:  # fmt: skip
    """When each action of a valid schedule starts and ends, on ranks that do one action at a time.

    The gradient of a full backward leaves at its end, that of a backward-input at its own. A message within a rank
    takes no time. Memory: `stored` from a forward's start, `kept` from the end of backward-input, nothing from the end
    of the backward or backward-weight.

    order: what validate() has said of it. Raises ScheduleError if it cannot be run, ValueError for senseless times.
    """
    seconds = times.per_stage(schedule)
    rank_of, last = schedule.rank_of, schedule.num_stages - 1
    m, transfer = schedule.micro_batches, times.transfer
    free = [0.0] * schedule.num_ranks
    starts: list[list[float]] = [[] for _ in free]
    ends: list[list[float]] = [[] for _ in free]
    # When the input of a stage's forward and of its backward arrive.
    forward_arrives = [[0.0] * m for _ in rank_of]
    backward_arrives = [[0.0] * m for _ in rank_of]
    forward, backward = seconds[FORWARD], seconds[BACKWARD]
    backward_input, backward_weight = seconds[BACKWARD_INPUT], seconds[BACKWARD_WEIGHT]
    delay_after = [transfer if here != there else 0.0 for here, there in pairwise(rank_of)]
    update = 0.0 if schedule.flush else times.optimizer / schedule.num_chunks
    for stage, kind, i in order or validate(schedule):
        rank = rank_of[stage]
        start, busy, updates = free[rank], 0.0, 0.0
        if kind == FORWARD:
            start = max(start, forward_arrives[stage][i])
            end = start + forward[stage]
            if stage < last:
                busy = delay_after[stage]
                forward_arrives[stage + 1][i] = end + busy
        elif kind == BACKWARD_WEIGHT:
            end, updates = start + backward_weight[stage], update
        else:
            start = max(start, backward_arrives[stage][i])
            whole = kind == BACKWARD
            end = start + (backward if whole else backward_input)[stage]
            updates = update if whole else 0.0
            if stage:
                busy = delay_after[stage - 1]
                backward_arrives[stage - 1][i] = end + busy
        free[rank] = (end + busy if times.sender_waits else end) + updates
        starts[rank].append(start)
        ends[rank].append(end)
    memory = memory or Memory()
    work = [sum(seconds[kind][stage] for stage, kind, _ in actions) for actions in schedule]
    optimizer = times.optimizer if schedule.flush else 0.0
    if schedule.flush:
        over = [end[-1] for end in ends]
        optimizer_ends = [(max(over) if times.barrier else end) + optimizer for end in over]
    else:
        optimizer_ends = free
        work = [one + m * times.optimizer for one in work]
    peaks = [
        peak_memory(actions, memory.stored, memory.after_input) / schedule.num_chunks
        for actions in schedule
    ]
    return Simulation(schedule, starts, ends, optimizer, optimizer_ends, work, peaks, memory)


@timeline_of.register
def _(schedule: Schedule) -> Timeline:
    """Of a schedule alone: as the papers draw it, F, I and W of one length, and messages for nothing."""
    return simulate(schedule, Times()).timeline


def _per_stage(name: str, seconds: float | Sequence[float], schedule: Schedule) -> list[float]:
    ranks, stages, chunks = schedule.num_ranks, schedule.num_stages, schedule.num_chunks
    given = [float(seconds)] * ranks if isinstance(seconds, (int, float)) else list(seconds)
    if len(given) not in (ranks, stages):
        raise ValueError(
            f"{name} is one number, one per rank ({ranks}) or one per stage ({stages}); got {len(given)}."
        )
    if not all(one >= 0 for one in given):
        raise ValueError(f"{name} is 0 seconds or more; got {min(given)}.")
    if len(given) == stages and chunks > 1:
        return given
    return [given[rank] / chunks for rank in schedule.rank_of]
