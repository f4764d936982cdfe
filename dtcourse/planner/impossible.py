"""What cannot be: which equation of devices, heads, layers, tokens, sequences, experts or micro-batches fails."""

from __future__ import annotations

from dtcourse.planner.layout import Batch, Layout
from dtcourse.planner.model import Model
from dtcourse.planner.pipelines import possible


def check(model: Model, layout: Layout, batch: Batch, devices: int | None = None) -> None:
    """Raises ValueError with the equation that fails. Sizes are numbers, not ranges."""
    if devices is not None and devices != layout.world:
        raise ValueError(f"{layout.equation()}, and there are {devices} devices")
    widths(model, layout)
    experts(model, layout)
    _sequences(layout, batch)
    _stages(model, layout, batch)


def widths(model: Model, layout: Layout) -> None:
    """Raises ValueError where heads, ffn or sequence are not cut evenly."""
    sizes = [("heads", model.heads)]  # a vocabulary is padded
    if model.expert_layers < model.layers:
        sizes.append(("ffn", model.wide))
    for what, size in sizes:
        if size % layout.tp:
            raise ValueError(f"{what}({size}) is no multiple of tp({layout.tp})")
    if model.grouped % layout.tp and layout.tp % model.grouped:
        raise ValueError(
            f"of kv_heads({model.grouped}) and tp({layout.tp}) neither is a multiple of the other"
        )
    ulysses = layout.tp * layout.cp if layout.context == "ulysses" else 1
    if ulysses > layout.tp:
        ranks = f"tp({layout.tp}) x cp({layout.cp})"
        if model.heads % ulysses:
            raise ValueError(
                f"ulysses gives heads out: heads({model.heads}) is no multiple of {ranks}"
            )
        if model.grouped % ulysses and ulysses % model.grouped:
            raise ValueError(
                f"ulysses gives heads out: of kv_heads({model.grouped}) and {ranks} neither is a multiple of the other"
            )
    zigzag = 2 if layout.cp > 1 and layout.context == "ring" and model.causal else 1
    cut = layout.tp if layout.sequence_parallel else 1
    if model.sequence % (layout.cp * zigzag * cut):
        raise ValueError(
            f"sequence({model.sequence}) is no multiple of cp({layout.cp})"
            + (" x 2 parts per rank (zig-zag)" if zigzag > 1 else "")
            + (f" x tp({layout.tp})" if cut > 1 else "")
        )


def experts(model: Model, layout: Layout) -> None:
    """Raises ValueError where experts are not given out evenly, or there are none."""
    if not model.experts:
        for what, degree in (("ep", layout.ep), ("expert_tp", layout.expert_tp or 1)):
            if degree > 1:
                raise ValueError(f"{what}({degree}) gives out experts, and the model has none")
        return
    if model.experts % layout.ep:
        raise ValueError(f"experts({model.experts}) is no multiple of ep({layout.ep})")
    if model.shared * model.expert % layout.tp:
        raise ValueError(
            f"shared({model.shared}) x expert_ffn({model.expert}) is no multiple of tp({layout.tp})"
        )
    if model.expert % layout.etp:
        raise ValueError(f"expert_ffn({model.expert}) is no multiple of expert_tp({layout.etp})")


def _sequences(layout: Layout, batch: Batch) -> None:
    each = layout.data * batch.micro_batch
    if batch.sequences % each:
        raise ValueError(
            f"sequences({batch.sequences}) is no multiple of dp_replicate({layout.dp_replicate}) x "
            f"dp_shard({layout.dp_shard}) x micro_batch({batch.micro_batch}) = {each}"
        )


def _stages(model: Model, layout: Layout, batch: Batch) -> None:
    if layout.layers is None and model.layers < layout.stages:
        raise ValueError(
            f"layers({model.layers}) are fewer than pp({layout.pp}) x chunks = {layout.stages} stages"
        )
    if layout.layers is not None and (
        len(layout.layers) != layout.stages or sum(layout.layers) != model.layers
    ):
        raise ValueError(
            f"layers says how many of {model.layers} each of {layout.stages} stages has; got "
            f"{' + '.join(map(str, layout.layers))} = {sum(layout.layers)}"
        )
    if layout.pp > 1:
        micro_batches = batch.sequences // (layout.data * batch.micro_batch)
        schedule = layout.schedule
        if not callable(schedule) and possible(schedule, layout.pp, micro_batches):
            return
        try:
            layout.schedule_of(micro_batches)
        except ValueError as error:
            raise ValueError(
                f"sequences({batch.sequences}) / (dp_replicate({layout.dp_replicate}) x dp_shard({layout.dp_shard}) x "
                f"micro_batch({batch.micro_batch})) = {micro_batches} micro-batches on pp({layout.pp}): {error}"
            ) from None
