"""A schedule with half of 1F1B's memory and no more than its bubble."""

from __future__ import annotations

import random
from typing import Any

from dtcourse.course.judging import Answer, CheckFailed, Exercise, require
from dtcourse.pipeline_parallel.actions import Action, Schedule, v_shaped
from dtcourse.pipeline_parallel.simulate import Simulation, Times, simulate
from dtcourse.pipeline_parallel.validate import ScheduleError

HALF = Exercise(
    "half_the_memory",
    lesson="18b",
    title="Half the memory",
    takes=("half_the_memory",),
    target="valid for 4 to 8 ranks; at most p/2 + 1 activations; a bubble rate of at most (p - 1) / (m + p - 1)",
    forbidden=(
        "dtcourse.pipeline_parallel.schedules",
        "dtcourse.pipeline_parallel.zero_bubble",
        "dtcourse.pipeline_parallel.search",
    ),
)


def _sizes() -> tuple[tuple[int, int], ...]:
    """Drawn anew for each check: few and many ranks, as few micro-batches as there may be, and more."""
    few, middle, many = random.randint(4, 5), random.randint(5, 7), random.randint(6, 8)
    return (few, 2 * few), (middle, random.randint(2 * middle + 1, 24)), (many, 2 * many + 1)


def _made(half_the_memory: Any, sizes: tuple[tuple[int, int], ...]) -> list[Any]:
    return [
        [[tuple(action) for action in actions] for actions in half_the_memory(p, m)]
        for p, m in sizes
    ]


def _simulated(lists: Any, p: int, m: int) -> Simulation:
    """The answer's schedule, as it runs. CheckFailed if it does not."""
    where = f"{p} ranks, {m} micro-batches"
    require(
        len(lists) == p,
        f"{where}: {len(lists)} lists came back, and there is one for each rank.",
    )
    for actions in lists:
        for one in actions:
            require(
                len(one) == 3 and isinstance(one[0], int) and isinstance(one[2], int),
                f"{where}: an action is (stage, kind, micro_batch), such as (0, 'F', 0); got {one!r}.",
            )
    schedule = Schedule(
        "yours", [[Action(*one) for one in actions] for actions in lists], v_shaped(p), m, [m] * p
    )
    try:
        return simulate(schedule, Times())
    except ScheduleError as error:
        some = "; ".join(error.problems[:2])
        raise CheckFailed(
            f"{where}: the validator refuses it: {some}. Stage s is on rank s, from stage {p} on on rank "
            f"{2 * p - 1} - s. "
            "Does each of a rank's two stages do everything, and can nobody wait for ever?"
        ) from None


def _all(answer: Answer) -> list[tuple[Simulation, tuple[int, int]]]:
    """What the answer makes of drawn sizes, and the sizes."""
    sizes = _sizes()
    made = zip(answer.call(_made, sizes), sizes, strict=True)
    return [(_simulated(lists, *size), size) for lists, size in made]


@HALF.check("valid for every number of ranks and micro-batches", points=2, needs=("check_memory",))
def check_valid(answer: Answer) -> None:
    """The validator's word."""
    _all(answer)


@HALF.check("at most p/2 + 1 activations on every rank", points=4, needs=("check_bubble",))
def check_memory(answer: Answer) -> None:
    """Counted until B or W."""
    for found, (p, m) in _all(answer):
        peak, rank = max((peak, rank) for rank, peak in enumerate(found.peak_memory))
        require(
            peak <= p / 2 + 1,
            f"{p} ranks, {m} micro-batches: rank {rank} stores {peak:g} activations at once, and there is room for "
            f"{p / 2 + 1:g}. "
            "What has to happen on a rank before it takes in one more?",
        )


@HALF.check("a bubble of at most 1F1B's", points=4, needs=("check_memory",))
def check_bubble(answer: Answer) -> None:
    """Where all three kinds of action take the same time."""
    for found, (p, m) in _all(answer):
        limit = (p - 1) / (m + p - 1)
        require(
            found.bubble_rate <= limit + 1e-9,
            f"{p} ranks, {m} micro-batches: the bubble rate is {found.bubble_rate:.1%}, and 1F1B's is {limit:.1%}. "
            "Look at its picture: what could a rank do in its gaps that needs nobody, and what do the others wait "
            "for meanwhile?",
        )
