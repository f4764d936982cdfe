"""How a model is cut over devices, and a step over micro-batches; which equation fails where it cannot be."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
from dtcourse.planner.ranges import check_ranges, ends

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")  # hybrid's order: the outermost first
CONTEXTS = ("ring", "all_gather", "ulysses")
Maker = Callable[[int, int], Schedule]
_SCHEDULES: dict[str, tuple[Maker, int]] = {  # and stages of a rank
    "1f1b": (one_f_one_b, 1),
    "gpipe": (gpipe, 1),
    "zb_h1": (zb_h1, 1),
    "zb_v": (zb_v, 2),
    "dualpipe_v": (dualpipe_v, 2),
}
_CHUNKED = {"interleaved": interleaved_1f1b, "breadth_first": breadth_first}
V_SHAPED = ("zb_v", "dualpipe_v")  # the last stage lies on the first one's rank


@dataclass(frozen=True)
class Layout:
    """Degrees, as in hybrid's configuration.

    dp_replicate, dp_shard, pp, cp, tp, ep: degrees; ep divides dp_shard x cp, or with expert_tp more than that
    expert_tp: ranks over which an expert's matrices are cut; None: tp, as all others'. Where it is less (Megatron's
               expert tensor parallelism, usually 1), tp's other ranks hold other experts: ep x expert_tp divides
               dp_shard x cp x tp
    stage:     ZeRO's over dp_shard: 0 (DDP) to 3 (FSDP)
    reshard_after_forward: with stage 3, parameters are gathered again for the backward pass
    reduce_once: gradients are averaged once a step, and not after each micro-batch; None: as is usual, which is once
                 for stages 0 and 1, and in pipelines
    sequence_parallel: what tp leaves whole is cut along the tokens: reduce-scatter and all-gather for an all-reduce
    context:   "ring", "all_gather" or "ulysses": how cp ranks attend to each other's tokens
    schedule:  "1f1b", "interleaved", "gpipe", "breadth_first", "zb_h1", "zb_v", "dualpipe_v", or a function of
               pp and micro-batches that makes one
    chunks:    stages of a rank, where the schedule is interleaved or breadth-first
    layers:    blocks of each stage, in order (the first has the embedding besides, the last the head); None: as even as
               they can be
    axes:      order, the outermost first: what is last is inside a node first
    overlap_data: sharding's and averaging's messages go while something is computed
    copied:    gathered parameters are copied to where they are used, and gradients to what is sent (fully_shard,
               buckets of DDP). Flat parameters and contiguous gradients (FSDP1, Megatron, DeepSpeed) are not
    overlap_transfer: a stage computes while its messages to the next one go (False: Megatron's plain 1F1B)
    overlap_tensor: the part of tp's messages that is hidden behind products (asynchronous tp: 0.5 or more)
    overlap_backward: without sequence_parallel, backward sums go behind the gradients of weights (Megatron's default)
    bucket:    bytes of a bucket of gradients
    """

    dp_replicate: int = 1
    dp_shard: int = 1
    pp: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    expert_tp: int | None = None
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
    copied: bool = True
    overlap_transfer: bool = True
    overlap_tensor: Any = 0.0
    overlap_backward: bool = True
    bucket: float = 25e6

    def __post_init__(self) -> None:
        check_ranges(self)
        for name in (*AXES, "ep", "expert_tp", "chunks"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} is at least 1; got {value}")
        if self.stage not in (0, 1, 2, 3):
            raise ValueError(f"ZeRO has the stages 0 to 3; got {self.stage}")
        if sorted(self.axes) != sorted(AXES):
            raise ValueError(f"axes has each of {', '.join(AXES)} once; got {self.axes}")
        if self.context not in CONTEXTS:
            raise ValueError(f"context is one of {', '.join(CONTEXTS)}; got {self.context!r}")
        wide = [axis for axis in self.axes if getattr(self, axis) > 1]
        together = ("dp_shard", "cp") if self.stage else ("dp_replicate", "dp_shard", "cp")
        places = [i for i, axis in enumerate(wide) if axis in together]
        if places and places[-1] - places[0] >= len(places):
            raise ValueError(
                f"{', '.join(together)} are one group here: neighbours in axes (those above 1); got {' x '.join(wide)}"
            )
        if self.ep > 1 and self.etp < self.tp:
            places = [i for i, axis in enumerate(wide) if axis in ("dp_shard", "cp", "tp")]
            if wide[places[-1]] != "tp" or places[-1] - places[0] >= len(places):
                raise ValueError(
                    "experts are given out over dp_shard x cp x tp, neighbours in axes with tp innermost; got "
                    f"{' x '.join(wide)}"
                )
        if not callable(self.schedule):
            self._known_schedule()
        if self.tp % self.etp:
            raise ValueError(f"tp({self.tp}) is no multiple of expert_tp({self.expert_tp})")
        if self.etp == self.tp and self.shared % self.ep:
            raise ValueError(
                f"ep divides dp_shard x cp: dp_shard({self.dp_shard}) x cp({self.cp}) = "
                f"{self.shared} is no multiple of ep({self.ep})"
            )
        if self.shared * self.tp % (self.ep * self.etp):
            raise ValueError(
                f"ep x expert_tp divides dp_shard x cp x tp: {self.shared} x tp({self.tp}) = {self.shared * self.tp} "
                f"is no multiple of ep({self.ep}) x expert_tp({self.etp})"
            )
        if self.etp < self.tp and not self.sequence_parallel:
            raise ValueError(
                f"with expert_tp({self.etp}) below tp({self.tp}) each tp rank sends tokens of its own to the experts: "
                "sequence_parallel=True"
            )
        if self.stage and self.shared == 1 and self.dp_replicate > 1:
            raise ValueError(
                f"stage({self.stage}) shares states over dp_shard(1) x cp(1) = 1 rank; dp_replicate are whole "
                f"copies: say dp_shard={self.dp_replicate} for dp_replicate, or stage=0"
            )
        if not self.bucket > 0:
            raise ValueError(f"bucket is above 0 bytes; got {self.bucket}")
        for value in ends(self.overlap_tensor):
            if not 0 <= value <= 1:
                raise ValueError(f"overlap_tensor is between 0 and 1; got {value}")
        if self.chunks > 1 and self.schedule not in _CHUNKED:
            raise ValueError(
                f"chunks({self.chunks}) are of {' and '.join(_CHUNKED)}; got {self.schedule!r}"
            )
        if (
            self.layers is not None
            and min(0, *self.layers, *(n - 1 for n in self.layers[1:-1])) < 0
        ):
            raise ValueError(
                "each stage but the first and the last has at least 1 layer, and these 0; got "
                f"{' + '.join(map(str, self.layers))}"
            )
        if self.sequence_parallel and self.tp == 1:
            raise ValueError("sequence_parallel cuts tokens over the tp ranks, and tp is 1")

    @property
    def world(self) -> int:
        """Devices in all."""
        return math.prod(getattr(self, axis) for axis in AXES)

    @property
    def shared(self) -> int:
        """Ranks that share a copy's states out: those of dp_shard and of cp."""
        return self.dp_shard * self.cp

    @property
    def etp(self) -> int:
        """Ranks over which an expert's matrices are cut."""
        return self.tp if self.expert_tp is None else self.expert_tp

    @property
    def expert_copies(self) -> int:
        """Ranks of dp_shard, cp and tp that hold the same part of the same experts, and share their states out."""
        return self.shared * self.tp // (self.ep * self.etp)

    @property
    def data(self) -> int:
        """Ranks with samples of their own."""
        return self.dp_replicate * self.dp_shard

    @property
    def stages(self) -> int:
        """Of the pipeline, over all ranks."""
        if self.pp == 1:
            return 1
        if callable(self.schedule):
            return self.schedule(self.pp, 2 * self.pp).num_stages
        if self.schedule in _CHUNKED:
            return self.pp * self.chunks
        return self.pp * _SCHEDULES[self.schedule][1]

    @property
    def ends_apart(self) -> bool:
        """Whether the first and the last stage are different ranks'."""
        if self.pp == 1:
            return False
        if not callable(self.schedule):
            return self.schedule not in V_SHAPED
        rank_of = self.schedule_of(2 * self.pp).rank_of
        return rank_of[0] != rank_of[-1]

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
        if self.schedule in _CHUNKED:
            return _CHUNKED[self.schedule](self.pp, micro_batches, self.chunks)
        return _SCHEDULES[self.schedule][0](self.pp, micro_batches)

    def _known_schedule(self) -> None:
        if self.schedule not in (*_SCHEDULES, *_CHUNKED):
            known = ", ".join([*_SCHEDULES, *_CHUNKED])
            raise ValueError(f"no schedule {self.schedule!r}; there are {known}, or a function")

    def equation(self) -> str:
        """The degrees and their product."""
        return f"{' x '.join(f'{n}({getattr(self, n)})' for n in self.axes)} = {self.world}"


@dataclass(frozen=True)
class Batch:
    """sequences: of a step, over all devices; micro_batch: sequences that a model's copy takes at once."""

    sequences: int
    micro_batch: int = 1

    def __post_init__(self) -> None:
        check_ranges(self)
        for name in ("sequences", "micro_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1; got {getattr(self, name)}")


def layers_of(model: Model, layout: Layout) -> list[int]:
    """Blocks of each stage: as said, or as even as they can be, with the last and the first shorter."""
    if layout.layers is not None:
        return list(layout.layers)
    stages = layout.stages
    each, more = divmod(model.layers, stages)
    longer = range((stages - more) // 2, (stages - more) // 2 + more)
    return [each + (i in longer) for i in range(stages)]
