"""What a pipeline's schedule says before it is made: who holds which stage, what is kept, the least that a step takes.

Closed forms, for searching among many layouts: a schedule of 64 ranks and 1,000 micro-batches has 100,000 actions.
Tests hold each of them against the schedules themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from dtcourse.pipeline_parallel import Schedule
from dtcourse.pipeline_parallel.actions import Action, looped, v_shaped
from dtcourse.pipeline_parallel.validate import validate
from dtcourse.planner.layout import V_SHAPED, Layout, Maker

WHOLE = ("1f1b", "interleaved", "gpipe", "breadth_first")  # a backward is one action


def schedule_of(layout: Layout, micro_batches: int) -> tuple[Schedule, list[Action]]:
    """The layout's, with its actions in an order that can be performed; kept for the next one that asks for the same.
    Not to be changed.
    """
    if callable(layout.schedule):
        made = layout.schedule_of(micro_batches)
        return made, validate(made)
    return _made(layout.schedule, layout.pp, layout.chunks, micro_batches)


@lru_cache(maxsize=8)  # the longest have some 20 MB
def _made(schedule: str, pp: int, chunks: int, micro_batches: int) -> tuple[Schedule, list[Action]]:
    made = Layout(pp=pp, schedule=schedule, chunks=chunks).schedule_of(micro_batches)
    return made, validate(made)


def rank_of(schedule: str | Maker, pp: int, chunks: int) -> list[int]:
    """By stage, the rank that holds it."""
    if pp == 1:
        return [0]
    if callable(schedule):
        return list(schedule(pp, 2 * pp).rank_of)
    return v_shaped(pp) if schedule in V_SHAPED else looped(pp, chunks)


def in_flight(schedule: str | Maker, pp: int, chunks: int, micro_batches: int) -> list[float]:
    """By rank, how many micro-batches' activations it keeps at once (the schedule's memory_bound)."""
    p, m = pp, micro_batches
    if p == 1:
        return [1]
    if callable(schedule):
        return list(schedule(p, m).memory_bound)
    if schedule == "1f1b":
        return [min(m, p - rank) for rank in range(p)]
    if schedule == "interleaved":
        total, a_round = m * chunks, m // max(1, m // p)
        ahead = [(chunks - 1) * a_round + 2 * (p - 1 - rank) for rank in range(p)]
        return [min(total, min(total, warmup) + 1) / chunks for warmup in ahead]
    most = {"zb_h1": p, "zb_v": p, "dualpipe_v": p + 0.5}.get(schedule, m)
    return [min(m, most)] * p


def possible(schedule: str, pp: int, micro_batches: int) -> bool:
    """Whether there is such a schedule of so many micro-batches."""
    if pp == 1:
        return True
    if schedule == "interleaved":
        return micro_batches % max(1, micro_batches // pp) == 0
    return schedule != "dualpipe_v" or micro_batches >= 2 * pp


def least_makespan(
    schedule: str,
    ranks: Sequence[int],
    forward: Sequence[float],
    inputs: Sequence[float],
    weights: Sequence[float],
    micro_batches: int,
    transfer: float,
) -> float:
    """Seconds that no order of this schedule's kind can go below, from the first forward to the last backward.

    ranks:    by stage, who holds it; forward, inputs, weights: by stage, seconds of one micro-batch
    transfer: seconds of a message between two ranks

    A rank begins when the first micro-batch has come to its first stage; then it has all its work to do; and then the
    last micro-batch has to go back through the stages before. Where gradients of weights may wait (zero bubble), only
    gradients of inputs come between that rank's last one and the first stage's. With all stages alike and no transfer
    this is GPipe's and 1F1B's makespan, (m + p - 1) (F + B), and interleaved 1F1B's.
    """
    whole, m = schedule in WHOLE, micro_batches
    begins: dict[int, tuple[float, float]] = {}
    work: dict[int, float] = {}
    slim: dict[int, float] = {}
    there = back = 0.0  # to this stage, and from it to the first one's end
    for stage, rank in enumerate(ranks):
        if stage:
            sent = transfer if ranks[stage - 1] != rank else 0.0
            there += forward[stage - 1] + sent
            back += inputs[stage - 1] + sent + (weights[stage - 1] if whole else 0.0)
        begins.setdefault(rank, (there, back))
        gradient = forward[stage] + inputs[stage]
        work[rank] = work.get(rank, 0.0) + gradient + weights[stage]
        slim[rank] = slim.get(rank, 0.0) + gradient
    # One micro-batch, all the way there and back.
    least = there + forward[-1] + inputs[-1] + (weights[-1] if whole else 0.0) + back
    for rank, (before, after) in begins.items():
        if whole:
            least = max(least, before + m * work[rank] + after)
        else:
            least = max(least, before + m * work[rank], before + m * slim[rank] + after)
    return least
