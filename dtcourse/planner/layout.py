"""How a model is cut over devices, and a step over micro-batches; which equation fails where it cannot be."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dtcourse.pipeline_parallel import (
    Schedule,
    breadth_first,
    dualpipe_v,
    gpipe,
    interleaved_1f1b,
    one_f_one_b,
    zb_h1,
    zb_v,
)
from dtcourse.planner.model import Model

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")  # hybrid's order: the outermost first
CONTEXTS = ("ring", "all_gather", "ulysses")
Maker = Callable[[int, int], Schedule]
_SCHEDULES: dict[str, tuple[Maker, bool]] = {  # and whether it wants chunks
    "1f1b": (one_f_one_b, False),
    "gpipe": (gpipe, False),
    "zb_h1": (zb_h1, False),
    "zb_v": (zb_v, False),
    "dualpipe_v": (dualpipe_v, False),
}


@dataclass(frozen=True)
class Layout:
    """Degrees, as in hybrid's configuration.

    dp_replicate, dp_shard, pp, cp, tp, ep: degrees; ep divides dp_shard x cp
    stage:     ZeRO's over dp_shard: 0 (DDP) to 3 (FSDP)
    reshard_after_forward: with stage 3, parameters are gathered again for the backward pass
    reduce_once: gradients are averaged once a step, and not after each micro-batch; None: as is usual, which is once
                 for stages 0 and 1, and in pipelines
    sequence_parallel: what tp leaves whole is cut along the tokens: reduce-scatter and all-gather for an all-reduce
    context:   "ring", "all_gather" or "ulysses": how cp ranks attend to each other's tokens
    schedule:  "1f1b", "interleaved", "gpipe", "breadth_first", "zb_h1", "zb_v", "dualpipe_v", or a function of
               pp and micro-batches that makes one
    chunks:    stages of a rank, where the schedule is interleaved or breadth-first
    layers:    blocks of each stage, in order; None: as even as they can be
    axes:      order, the outermost first: what is last is inside a node first
    overlap_data: sharding's and averaging's messages go while something is computed
    overlap_tensor: the part of tp's messages that is hidden behind products (asynchronous tp: 0.5 or more)
    bucket:    bytes of a bucket of gradients
    """

    dp_replicate: int = 1
    dp_shard: int = 1
    pp: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    stage: int = 0
    reshard_after_forward: bool = True
    reduce_once: bool | None = None
    sequence_parallel: bool = False
    context: str = "ring"
    schedule: str | Maker = "1f1b"
    chunks: int = 1
    layers: tuple[int, ...] | None = None
    axes: tuple[str, ...] = AXES
    overlap_data: bool = True
    overlap_tensor: float = 0.0
    bucket: float = 25e6

    def __post_init__(self) -> None:
        for name in (*AXES, "ep", "chunks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1; got {getattr(self, name)}")
        if self.stage not in (0, 1, 2, 3):
            raise ValueError(f"ZeRO has the stages 0 to 3; got {self.stage}")
        if sorted(self.axes) != sorted(AXES):
            raise ValueError(f"axes has each of {', '.join(AXES)} once; got {self.axes}")
        if self.context not in CONTEXTS:
            raise ValueError(f"context is one of {', '.join(CONTEXTS)}; got {self.context!r}")
        if self.dp_shard * self.cp % self.ep:
            raise ValueError(
                f"ep divides dp_shard x cp: dp_shard({self.dp_shard}) x cp({self.cp}) = "
                f"{self.dp_shard * self.cp} is no multiple of ep({self.ep})"
            )
        if self.sequence_parallel and self.tp == 1:
            raise ValueError("sequence_parallel cuts tokens over the tp ranks, and tp is 1")

    @property
    def world(self) -> int:
        """Devices in all."""
        return math.prod(getattr(self, axis) for axis in AXES)

    @property
    def data(self) -> int:
        """Ranks with samples of their own."""
        return self.dp_replicate * self.dp_shard

    @property
    def stages(self) -> int:
        """Of the pipeline, over all ranks."""
        return self.pp * (self.schedule_of(self.pp).num_chunks if self.pp > 1 else 1)

    @property
    def once(self) -> bool:
        """Whether gradients are averaged once a step."""
        if self.reduce_once is not None:
            return self.reduce_once
        return self.stage < 2 or self.pp > 1

    def schedule_of(self, micro_batches: int) -> Schedule:
        """The pipeline's."""
        if callable(self.schedule):
            return self.schedule(self.pp, micro_batches)
        if self.schedule == "interleaved":
            return interleaved_1f1b(self.pp, micro_batches, self.chunks)
        if self.schedule == "breadth_first":
            return breadth_first(self.pp, micro_batches, self.chunks)
        if self.schedule not in _SCHEDULES:
            known = ", ".join([*_SCHEDULES, "interleaved", "breadth_first"])
            raise ValueError(f"no schedule {self.schedule!r}; there are {known}, or a function")
        return _SCHEDULES[self.schedule][0](self.pp, micro_batches)

    def equation(self) -> str:
        """The degrees and their product."""
        return f"{' x '.join(f'{n}({getattr(self, n)})' for n in self.axes)} = {self.world}"


@dataclass(frozen=True)
class Batch:
    """sequences: of a step, over all devices; micro_batch: sequences that a model's copy takes at once."""

    sequences: int
    micro_batch: int = 1


def check(model: Model, layout: Layout, batch: Batch, devices: int | None = None) -> None:
    """Raises ValueError with the equation that fails: devices, heads, layers, tokens, sequences or experts."""
    if devices is not None and devices != layout.world:
        raise ValueError(f"{layout.equation()}, and there are {devices} devices")
    for what, size in (
        ("heads", model.heads),
        ("ffn", model.wide),
        ("vocabulary", model.vocabulary),
    ):
        if size % layout.tp and what != "vocabulary":  # a vocabulary is padded
            raise ValueError(f"{what}({size}) is no multiple of tp({layout.tp})")
    ulysses = layout.tp * layout.cp if layout.context == "ulysses" else 1
    if model.heads % ulysses:
        raise ValueError(
            f"ulysses gives heads out: heads({model.heads}) is no multiple of tp({layout.tp}) x cp({layout.cp})"
        )
    tokens = layout.cp * (layout.tp if layout.sequence_parallel else 1)
    if model.sequence % tokens:
        raise ValueError(
            f"sequence({model.sequence}) is no multiple of cp({layout.cp})"
            + (f" x tp({layout.tp})" if layout.sequence_parallel else "")
        )
    if layout.ep > 1 and (not model.experts or model.experts % layout.ep):
        raise ValueError(f"experts({model.experts}) is no multiple of ep({layout.ep})")
    each = layout.data * batch.micro_batch
    if batch.micro_batch < 1 or batch.sequences < 1 or batch.sequences % each:
        raise ValueError(
            f"sequences({batch.sequences}) is no multiple of dp_replicate({layout.dp_replicate}) x "
            f"dp_shard({layout.dp_shard}) x micro_batch({batch.micro_batch}) = {each}"
        )
    if model.layers < layout.stages:
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


def layers_of(model: Model, layout: Layout) -> list[int]:
    """Blocks of each stage: as said, or as even as they can be, with the last and the first shorter."""
    if layout.layers is not None:
        return list(layout.layers)
    stages = layout.stages
    each, more = divmod(model.layers, stages)
    longer = range((stages - more) // 2, (stages - more) // 2 + more)
    return [each + (i in longer) for i in range(stages)]


__all__ = ["AXES", "Batch", "Layout", "check", "layers_of"]
