"""Whether a schedule is complete, comes to its end, and stays within its memory; and if not, what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dtcourse.pipeline_parallel.actions import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    KINDS,
    Action,
    Schedule,
    needs,
    result,
)
from dtcourse.plural import plural

_MOST_TOLD = 5
# By kind, how far a micro-batch has come in a stage before it and after it.
_ABSENT, _STORED, _HALF, _DONE = range(4)
_STEPS = {
    FORWARD: (_ABSENT, _STORED),
    BACKWARD: (_STORED, _DONE),
    BACKWARD_INPUT: (_STORED, _HALF),
    BACKWARD_WEIGHT: (_HALF, _DONE),
}
_MISSING = {_ABSENT: "F", _STORED: "B (or I and W)", _HALF: "W"}
_BEFORE = {FORWARD: "", BACKWARD: FORWARD, BACKWARD_INPUT: FORWARD, BACKWARD_WEIGHT: BACKWARD_INPUT}


class ScheduleError(ValueError):
    """A schedule that cannot be run. `problems` has one sentence for each thing that is wrong."""

    def __init__(self, schedule: Schedule, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        told = self.problems[:_MOST_TOLD]
        if left := len(self.problems) - len(told):
            told.append(f"and {plural(left, 'more problem')}")
        super().__init__(f"{schedule!r} cannot be run:\n" + "\n".join(f"  {one}" for one in told))


def validate(schedule: Schedule, memory_limit: float | None = None) -> list[Action]:
    """Proves a schedule, and returns its actions in an order in which they can be performed.

    - It is complete: each stage does each micro-batch's F once, and its B once, or I and W; each on the rank that holds
      the stage, and a rank does nothing else.
    - Each rank's list is in order: a backward after its forward, W after I.
    - It comes to an end. Where the actions of all ranks can be put into one order that respects each rank's list and
      what each needs from other stages (the order returned), messages can be posted in one order on all ranks, too
      (posting.py). Then even a send that is over only when it is received (gloo's, and NCCL's) is met: nothing relies
      on a buffer in between. Where there is no such order, ranks wait in a circle.
    - It stays within `memory_bound`, and within `memory_limit` (the same unit) if there is one.

    Time and memory: about a microsecond and 100 bytes per action.

    Raises ScheduleError with a sentence for each problem of the first kind that is found.
    """
    problems = list(_shape(schedule)) or list(_lists(schedule))
    if problems:
        raise ScheduleError(schedule, problems)
    order, waiting = _in_one_order(schedule)
    if waiting:
        raise ScheduleError(schedule, [_circle(schedule, waiting)])
    limits = [
        bound if memory_limit is None else min(bound, memory_limit)
        for bound in schedule.memory_bound
    ]
    problems = [
        f"rank {rank} stores {peak:g} at once, of {limit:g} that it may (activations of one micro-batch)"
        for rank, (peak, limit) in enumerate(zip(stored(schedule), limits, strict=True))
        if peak > limit + 1e-9
    ]
    if problems:
        raise ScheduleError(schedule, problems)
    return order


def stored(schedule: Schedule) -> list[float]:
    """By rank, the most activations stored at once, in those of one micro-batch in all stages of the rank,
    until B or W.
    """
    return [peak_memory(actions) / schedule.num_chunks for actions in schedule]


def peak_memory(actions: Sequence[Action], stored: float = 1.0, kept: float = 1.0) -> float:
    """The most that a rank's list has stored at once: of activations. (PipeDream's versions of weights: pipedream.py.)

    stored: by each forward, until its backward
    kept:   of that, from backward-input to backward-weight
    """
    whole = halves = 0
    peak = 0.0
    for _, kind, _ in actions:
        if kind == FORWARD:
            whole += 1
            peak = max(peak, whole * stored + halves * kept)
        elif kind == BACKWARD_WEIGHT:
            halves -= 1
        else:
            whole -= 1
            halves += kind == BACKWARD_INPUT
    return peak


def _shape(schedule: Schedule) -> Iterator[str]:
    """What is wrong with its numbers."""
    ranks = schedule.num_ranks
    if strangers := sorted({rank for rank in schedule.rank_of if not 0 <= rank < ranks}):
        yield f"rank_of puts stages on rank {strangers[0]}, and there are lists for {plural(ranks, 'rank')}"
    counts = [schedule.rank_of.count(rank) for rank in range(ranks)] if ranks else []
    if not counts or min(counts) != max(counts) or not min(counts):
        yield f"every rank holds equally many stages, one or more; these hold {counts}"
    if schedule.micro_batches < 1:
        yield f"it has {plural(schedule.micro_batches, 'micro-batch', 'micro-batches')}; the least is 1"
    if len(schedule.memory_bound) != ranks:
        yield f"memory_bound has {plural(len(schedule.memory_bound), 'entry', 'entries')} for {plural(ranks, 'rank')}"


def _lists(schedule: Schedule) -> Iterator[str]:
    """What is missing, twice, in the wrong list or in the wrong order."""
    m, stages = schedule.micro_batches, schedule.num_stages
    for rank, actions in enumerate(schedule):
        state = {stage: bytearray(m) for stage in schedule.stages_of(rank)}
        for action in actions:
            stage, kind, i = action
            here = state.get(stage)
            if here is None or kind not in _STEPS or not 0 <= i < m:
                yield _stranger(action, rank, schedule, stages)
                continue
            before, after = _STEPS[kind]
            if here[i] == before:
                here[i] = after
            elif here[i] > before:
                yield f"rank {rank} does {action} a second time, or after a backward that has used up what it needs"
            else:
                first = Action(stage, _BEFORE[kind], i)
                yield f"rank {rank} does {action} before {first}, or never does {first}"
        for stage, reached in state.items():
            if m != reached.count(_DONE):
                for i, how_far in enumerate(reached):
                    if how_far != _DONE:
                        yield f"rank {rank} never does {stage}{_MISSING[how_far]} of micro-batch {i}"


def _stranger(action: Action, rank: int, schedule: Schedule, stages: int) -> str:
    stage, kind, i = action
    if kind not in KINDS:
        return f"rank {rank}: {action} is of no known kind; there are {', '.join(KINDS)}"
    if not 0 <= i < schedule.micro_batches:
        return f"rank {rank}: {action} is of micro-batch {i}, and there are {schedule.micro_batches}, from 0"
    if not 0 <= stage < stages:
        return f"rank {rank}: {action} is of stage {stage}, and there are {stages}, from 0"
    return f"rank {rank} does {action}, and stage {stage} is on rank {schedule.rank_of[stage]}"


def _in_one_order(schedule: Schedule) -> tuple[list[Action], dict[int, Action]]:
    """The actions in an order that can be performed, and by rank, what it waits for for ever.

    Each rank goes on until it needs what is not there; whoever makes that wakes it.
    """
    m, last = schedule.micro_batches, schedule.num_stages - 1
    forwards = [bytearray(m) for _ in range(last + 1)]
    backwards = [bytearray(m) for _ in range(last + 1)]
    waiting: dict[Action, int] = {}  # what is needed -> who needs it
    position = [0] * schedule.num_ranks
    awake = list(reversed(range(schedule.num_ranks)))
    order: list[Action] = []
    while awake:
        rank = awake.pop()
        actions, start = schedule.ranks[rank], position[rank]
        end = len(actions)
        for index in range(start, end):
            action = actions[index]
            stage, kind, i = action
            if kind == FORWARD:
                if stage and not forwards[stage - 1][i]:
                    end = index
                    break
                forwards[stage][i] = 1
            elif kind != BACKWARD_WEIGHT:
                if stage < last and not backwards[stage + 1][i]:
                    end = index
                    break
                backwards[stage][i] = 1
            else:
                continue
            if waiting and (who := waiting.pop(result(action), None)) is not None:
                awake.append(who)
        order.extend(actions[start:end])
        position[rank] = end
        if end < len(actions):
            need = needs(actions[end], last + 1)
            assert need is not None
            # Unless it has been made in the meantime: then nobody would wake this rank.
            made_by_now = forwards if need.kind == FORWARD else backwards
            if made_by_now[need.stage][need.micro_batch]:
                awake.append(rank)
            else:
                waiting[need] = rank
    return order, {rank: schedule.ranks[rank][position[rank]] for rank in waiting.values()}


def _circle(schedule: Schedule, waiting: dict[int, Action]) -> str:
    """Who waits for whom, once round."""
    rank, seen = next(iter(waiting)), []
    while rank not in seen:
        seen.append(rank)
        need = needs(waiting[rank], schedule.num_stages)
        assert need is not None
        rank = schedule.rank_of[need.stage]
    circle = seen[seen.index(rank) :]
    words = []
    for one in circle:
        need = needs(waiting[one], schedule.num_stages)
        assert need is not None
        words.append(
            f"rank {one} waits with {waiting[one]} for {need} of rank {schedule.rank_of[need.stage]}"
        )
    return "ranks wait in a circle: " + ", ".join(words)
