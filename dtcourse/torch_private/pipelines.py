"""The orders of torch.distributed.pipelining's schedules."""

from __future__ import annotations

from typing import Any


def pipeline_order(
    name: str, ranks: int, micro_batches: int, chunks: int = 1
) -> list[list[tuple[int, str, int]]]:
    """By rank, the (stage, kind, micro-batch) of a schedule of torch.distributed.pipelining,
    without bubbles or messages.

    name: the class's ("ScheduleGPipe"); kinds are F, B, I, W. OVERLAP_F_B is given as its two parts.
    """
    from torch.distributed.pipelining import schedules

    # Not constructed: that takes stages, which take a process group.
    order: Any = object.__new__(getattr(schedules, name))
    vars(order).update(
        _num_stages=ranks * chunks,
        num_stages=ranks * chunks,
        _n_microbatches=micro_batches,
        _stages=[None] * chunks,
        n_local_stages=chunks,
        pp_group_size=ranks,
        number_of_rounds=max(1, micro_batches // ranks),
        microbatches_per_round=micro_batches // max(1, micro_batches // ranks),
    )
    if isinstance(order, schedules.PipelineScheduleSingle):
        listed: Any = order._get_pipeline_order()
    else:
        listed = {}
        for rank in range(ranks):
            order.rank = rank
            listed[rank] = order._calculate_single_rank_operations(rank)
    found: list[list[tuple[int, str, int]]] = []
    for rank in range(ranks):
        actions: list[Any] = [
            part for one in listed[rank] if one for part in one.sub_actions or (one,)
        ]
        found.append(
            [
                (one.stage_index, one.computation_type.value, one.microbatch_index)
                for one in actions
                if one.computation_type.value in "FBIW"
            ]
        )
    return found
