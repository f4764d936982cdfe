"""Schedules with whole backwards, from one micro-batch at a time to interleaved 1F1B, and PipeDream.

Bubbles and memory, for p ranks, m micro-batches, v chunks a rank, F and B the seconds of a rank's forward and backward
of one micro-batch, transfers for nothing:

                       idle seconds of a rank     activations stored on rank r
    sequential         m (p - 1) (F + B)          1
    GPipe              (p - 1) (F + B)            m
    1F1B               (p - 1) (F + B)            min(m, p - r)
    interleaved 1F1B   (p - 1) (F + B) / v        1F1B's on rank 0, and (p - 1) / v more
    breadth-first      (p - 1) (F + B) / v        m

They are written from a rank's point of view; nobody sees the others. That the lists fit together, validate.py proves.
"""

from __future__ import annotations

from dtcourse.pipeline_parallel.actions import (
    BACKWARD,
    FORWARD,
    Action,
    Schedule,
    looped,
)
from dtcourse.plural import plural


def sequential(ranks: int, micro_batches: int) -> Schedule:
    """A model split over ranks, and no more: each micro-batch through all stages and back before the next one starts.

    At any time one rank works and the others wait.
    """
    at_least(1, ranks, "rank")
    at_least(1, micro_batches, "micro-batch")
    lists = [
        [Action(rank, kind, i) for i in range(micro_batches) for kind in (FORWARD, BACKWARD)]
        for rank in range(ranks)
    ]
    return Schedule("sequential", lists, looped(ranks), micro_batches, [1] * ranks)


def gpipe(ranks: int, micro_batches: int) -> Schedule:
    """All forwards, then all backwards (Huang et al. 2019, GPipe).

    Backwards go in the forwards' order, as in PyTorch's ScheduleGPipe; the paper draws them in the opposite one. The
    bubble is the same: the last rank has kept everything, and can begin with any.
    """
    at_least(1, ranks, "rank")
    at_least(1, micro_batches, "micro-batch")
    lists = [
        [Action(rank, kind, i) for kind in (FORWARD, BACKWARD) for i in range(micro_batches)]
        for rank in range(ranks)
    ]
    return Schedule("GPipe", lists, looped(ranks), micro_batches, [micro_batches] * ranks)


def one_f_one_b(ranks: int, micro_batches: int) -> Schedule:
    """One forward, one backward (Narayanan et al. 2019, PipeDream; with a flush: Fan et al. 2021, DAPPLE).

    GPipe's bubble. But a micro-batch goes back as soon as it can, so rank r has at most p - r of them under way: as
    many as fit between it and the end of the pipeline.
    """
    at_least(1, ranks, "rank")
    at_least(1, micro_batches, "micro-batch")
    lists = []
    for rank in range(ranks):
        warmup = min(micro_batches, ranks - rank)
        actions = [Action(rank, FORWARD, i) for i in range(warmup)]
        for i in range(micro_batches):
            actions.append(Action(rank, BACKWARD, i))
            if warmup + i < micro_batches:
                actions.append(Action(rank, FORWARD, warmup + i))
        lists.append(actions)
    bound = [min(micro_batches, ranks - rank) for rank in range(ranks)]
    return Schedule("1F1B", lists, looped(ranks), micro_batches, bound)


def pipedream(ranks: int, micro_batches: int) -> Schedule:
    """PipeDream: 1F1B without an end (Narayanan et al. 2019). There is no bubble but the first and the last.

    The order is 1F1B's. What differs is when weights change: each stage updates its own after each of its backwards. So
    a micro-batch meets older weights on the first stage than on the last, and its backward must take those of its
    forward (weight stashing), p - r versions on rank r; vertical sync makes it take one version on all stages.
    """
    same = one_f_one_b(ranks, micro_batches)
    return Schedule(
        "PipeDream", same.ranks, same.rank_of, micro_batches, same.memory_bound, flush=False
    )


def interleaved_1f1b(ranks: int, micro_batches: int, chunks: int) -> Schedule:
    """1F1B with several stages a rank, in rounds of p micro-batches (Narayanan et al. 2021, Megatron-LM).

    A rank works on its first stage until a round of micro-batches has passed it, then on its second, and so on. A stage
    is shorter by v, and so is the wait for the first micro-batch; activations cross v times as many borders.

    As PyTorch's ScheduleInterleaved1F1B it takes rounds of more than p micro-batches where p does not divide them.

    Raises ValueError if micro-batches do not make equal rounds of at least p (or one round of less).
    """
    at_least(1, ranks, "rank")
    at_least(1, micro_batches, "micro-batch")
    at_least(1, chunks, "chunk")
    per_round = round_length(ranks, micro_batches)
    total = micro_batches * chunks

    def nth(rank: int, kind: str, n: int) -> Action:
        """The n-th forward, or backward, of a rank."""
        this_round, within = divmod(n, per_round * chunks)
        chunk, i = divmod(within, per_round)
        if kind == BACKWARD:
            chunk = chunks - 1 - chunk
        return Action(chunk * ranks + rank, kind, this_round * per_round + i)

    lists, bound = [], []
    for rank in range(ranks):
        # Until the first backward comes back: a round of all chunks but the last, and both ways to the last rank.
        warmup = min(total, (chunks - 1) * per_round + 2 * (ranks - 1 - rank))
        actions = [nth(rank, FORWARD, n) for n in range(warmup)]
        for n in range(total):
            if warmup + n < total:
                actions.append(nth(rank, FORWARD, warmup + n))
            actions.append(nth(rank, BACKWARD, n))
        lists.append(actions)
        bound.append(min(total, warmup + 1) / chunks)
    return Schedule("interleaved 1F1B", lists, looped(ranks, chunks), micro_batches, bound)


def breadth_first(ranks: int, micro_batches: int, chunks: int) -> Schedule:
    """All micro-batches through a rank's first stage, then through its second (Lamy-Poirier 2022, 2211.05953).

    GPipe with several stages a rank. All is kept; but a stage's weights are used in one stretch, so that where they are
    sharded (ZeRO-3) they are gathered once a step, and its gradients can be averaged while the next stage works.
    """
    at_least(1, ranks, "rank")
    at_least(1, micro_batches, "micro-batch")
    at_least(1, chunks, "chunk")
    lists = []
    for rank in range(ranks):
        stages = range(rank, ranks * chunks, ranks)
        actions = [Action(stage, FORWARD, i) for stage in stages for i in range(micro_batches)]
        # The last micro-batch first, as in PyTorch's ScheduleLoopedBFS: what was stored last is freed first.
        actions += [
            Action(stage, BACKWARD, i)
            for stage in reversed(stages)
            for i in reversed(range(micro_batches))
        ]
        lists.append(actions)
    name = "looped breadth-first"
    return Schedule(name, lists, looped(ranks, chunks), micro_batches, [micro_batches] * ranks)


def round_length(ranks: int, micro_batches: int) -> int:
    """How many micro-batches go through a chunk before the rank turns to the next one.

    Raises ValueError if that is not the same number in all rounds; with those nearby that would do.
    """
    rounds = max(1, micro_batches // ranks)
    if micro_batches % rounds:
        fitting = [n for n in range(1, 2 * micro_batches) if n % max(1, n // ranks) == 0]
        near = sorted(fitting, key=lambda n: abs(n - micro_batches))[:2]
        raise ValueError(
            f"{plural(micro_batches, 'micro-batch', 'micro-batches')} on {plural(ranks, 'rank')} do not make "
            f"{rounds} equal rounds; {near[0]} or {near[1]} do."
        )
    return micro_batches // rounds


def at_least(least: int, number: int, noun: str) -> None:
    """ValueError where there are fewer than the schedule can work with."""
    if number < least:
        many = noun + ("es" if noun.endswith("ch") else "s")
        raise ValueError(f"This schedule needs {plural(least, noun, many)} or more; got {number}.")
