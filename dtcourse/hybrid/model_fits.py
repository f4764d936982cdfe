"""What a model must be like to be cut over several axes at once: its kind, its heads, its ties."""

from __future__ import annotations

from typing import Any

from dtcourse import sequence_parallel
from dtcourse.pipeline_parallel import Schedule
from dtcourse.plural import plural


def check_kind(model: Any) -> None:
    """Raises ValueError for a model without the parts of a Transformer."""
    if hasattr(model, "blocks") and hasattr(model, "config"):
        return
    if hasattr(getattr(model, "module", None), "blocks"):
        raise ValueError(
            f"the model is wrapped in {type(model).__name__}, and hybrid cuts a plain one: pass model.module"
        )
    raise ValueError(
        "hybrid cuts a model with the parts of dtcourse.models.Transformer (an embedding, blocks, a head, and their "
        f"config); got {type(model).__name__}. For another model, compose the techniques one after the other as "
        "hybrid/parallelize.py does"
    )


def check_heads(model: Any, tp: int, cp: int, context: str, dp_shard: int) -> None:
    """Raises ValueError where attention heads cannot be given out to the ranks of tp, and of cp under Ulysses."""
    heads, kv_heads = model.config.n_heads, model.config.kv_heads
    if context == "ulysses" and heads % (tp * cp):
        raise ValueError(
            f"Ulysses gives heads out to the ranks of cp, and {heads} heads do not divide by "
            f"tp({tp}) x cp({cp}) = {tp * cp}; context='ring' needs no such thing"
        )
    if context == "ulysses" and cp > 1:
        try:
            sequence_parallel.check_heads(heads // tp, max(1, kv_heads // tp), cp)
        except ValueError as error:
            raise ValueError(f"cp({cp}), with what tp({tp}) leaves on a rank: {error}") from None
    if dp_shard > 1 and tp > kv_heads:
        raise ValueError(
            f"with tp({tp}) several ranks hold the same one of {plural(kv_heads, 'key-value head')}, and full "
            f"sharding, dp_shard({dp_shard}), cannot cut what two ranks of tp both have: take tp of at most "
            f"{kv_heads}, or dp_replicate in place of dp_shard"
        )


def check_ties(model: Any, schedule: Schedule, dp_shard: int) -> None:
    """Raises ValueError where full sharding would cut a weight twice: that of embedding and head, on one rank."""
    ends = {0, schedule.num_stages - 1}
    meet = len(ends) == 2 and any(
        ends <= {*schedule.stages_of(rank)} for rank in range(schedule.num_ranks)
    )
    if model.config.tied and meet:
        raise ValueError(
            f"{schedule.name} puts the first and the last of {schedule.num_stages} stages on one rank, and full "
            f"sharding, dp_shard({dp_shard}), cuts each stage by itself: embedding and head share a weight "
            "(tied=True), which would be cut twice. Take tied=False, a schedule with one stage per rank, or "
            "dp_replicate in place of dp_shard"
        )
