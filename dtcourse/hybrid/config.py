"""Every degree of parallelism in one place, the order of the mesh's axes, and what does not fit together.

    config = HybridConfig(dp_shard=2, pp=2, tp=2, micro_batches=4)
    mesh = config.mesh("cpu")                       # 8 ranks: arange(8).view(pp, dp_replicate, dp_shard, cp, tp)

The ranks are the product of five degrees. The sixth, ep, is no axis of that product: the ranks that hold different
experts are among those that have different tokens, dp_shard x cp of them, so ep divides that number.

Which axis is innermost decides whose messages stay inside a node (neighbouring ranks are on one): tensor parallelism
sends most, and while others wait, so it comes last by default. (Megatron-LM's and torchtitan's order: Narayanan et al.
2104.04473, section 3.2; Liang et al. 2410.06511.)
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dtcourse import tensor_parallel
from dtcourse.hybrid import model_fits
from dtcourse.pipeline_parallel import Schedule, one_f_one_b
from dtcourse.plural import plural

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
CONTEXTS = ("ring", "ulysses")


@dataclass(frozen=True)
class HybridConfig:
    """How a model is cut.

    dp_replicate:  copies of the model, each with samples of its own
    dp_shard:      ranks that share a copy's parameters out (fully_shard), each with samples of its own; above 1 those
                   of cp share them as well, since they hold the same
    pp, cp, tp:    stages' ranks; parts of each sequence; slices of each weight
    ep:            ranks that share the experts out; a divisor of dp_shard x cp
    axes:          the mesh's, the outermost first
    micro_batches: of a step, per rank
    schedule:      (pp, micro_batches) -> the pipeline's schedule
    layers:        of each stage, in order; the embedding is one, and so is the head. None: as even as they can be
    sequence:      what tensor parallelism leaves whole is cut along the tokens, over the tp ranks (Megatron's)
    context:       "ring" or "ulysses": how cp ranks attend to each other's tokens
    reduce_once:   gradients of full sharding are reduced after a stage's last micro-batch, and not after each: as many
                   times fewer bytes as there are micro-batches. Until then a rank keeps those of its stages whole, and
                   from its first backward on the parameters too: as much memory as where dp_shard is 1
    recompute:     stages keep their inputs only, and run forward once more before backward
    seed:          of dropout's random numbers

    Raises ValueError, with the numbers, for what is no whole number, degrees below 1, axes that are not these five, and
    an ep that does not fit.
    """

    dp_replicate: int = 1
    dp_shard: int = 1
    pp: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    axes: tuple[str, ...] = AXES
    micro_batches: int = 1
    schedule: Callable[[int, int], Schedule] = one_f_one_b
    layers: Sequence[int] | None = None
    sequence: bool = False
    context: str = "ring"
    reduce_once: bool = False
    recompute: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in (*AXES, "ep", "micro_batches"):
            self._set(name, _whole(name, getattr(self, name)))
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1; got {getattr(self, name)}")
        if self.layers is not None:
            layers = _several("layers", self.layers)
            self._set("layers", tuple(_whole("each of layers", n) for n in layers))
        for name in ("sequence", "reduce_once", "recompute"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} is True or False; got {getattr(self, name)!r}")
        if not callable(self.schedule):
            raise ValueError(
                "schedule is a function of pp and micro_batches, such as pipeline_parallel.one_f_one_b; "
                f"got {self.schedule!r}"
            )
        self._set("seed", _whole("seed", self.seed))
        # A list, as a JSON or YAML file has it.
        self._set("axes", tuple(map(str, _several("axes", self.axes))))
        twice = [name for name in dict.fromkeys(self.axes) if self.axes.count(name) > 1]
        if twice or {*self.axes} != {*AXES}:
            missing = [name for name in AXES if name not in self.axes]
            unknown = [name for name in self.axes if name not in AXES]
            raise ValueError(
                f"axes has each of {', '.join(AXES)} once; got {', '.join(self.axes) or 'none'}: twice "
                f"{_listed(twice)}; missing {_listed(missing)}; unknown {_listed(unknown)}"
            )
        if self.dp_shard * self.cp % self.ep:
            raise ValueError(
                f"ep divides dp_shard x cp, the ranks that have different tokens and one copy of the model: "
                f"dp_shard({self.dp_shard}) x cp({self.cp}) = {self.dp_shard * self.cp} is no multiple of "
                f"ep({self.ep})"
            )
        if self.context not in CONTEXTS:
            raise ValueError(f"context is {' or '.join(map(repr, CONTEXTS))}; got {self.context!r}")

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)  # frozen, but for what __post_init__ puts in order

    @property
    def degrees(self) -> dict[str, int]:
        """Of each axis of the mesh, the outermost first."""
        return {name: getattr(self, name) for name in self.axes}

    @property
    def ranks(self) -> int:
        """How many there are in all."""
        return math.prod(self.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the mesh: the degrees in the order of its axes."""
        return tuple(self.degrees.values())

    @property
    def equation(self) -> str:
        """The degrees and their product."""
        return (
            f"{' x '.join(f'{n}({degree})' for n, degree in self.degrees.items())} = {self.ranks}"
        )

    def mesh(self, device_type: str) -> DeviceMesh:
        """The mesh over all ranks. A collective. Raises ValueError where their number is not the degrees' product."""
        ranks = torch.distributed.get_world_size()
        if ranks != self.ranks:
            raise ValueError(f"{self.equation}, and there are {plural(ranks, 'rank')}")
        return init_device_mesh(device_type, self.shape, mesh_dim_names=self.axes)

    def check_mesh(self, mesh: DeviceMesh) -> None:
        """Raises ValueError for a mesh with other axes, in another order or of other sizes."""
        names = mesh.mesh_dim_names
        if names is None:
            raise ValueError(
                f"{self.equation}, and the mesh is {tuple(mesh.shape)}, axes without names"
            )
        found = (
            f"the mesh is {' x '.join(f'{n}({s})' for n, s in zip(names, mesh.shape, strict=True))}"
        )
        if names != self.axes:
            how = "in another order" if sorted(names) == sorted(self.axes) else "with other axes"
            raise ValueError(f"{self.equation}, and {found}, {how}")
        if tuple(mesh.shape) != self.shape:
            raise ValueError(f"{self.equation}, and {found} = {mesh.size()}")

    def check_model(self, model: Any) -> None:
        """Raises ValueError, before anything is changed, where the model's sizes do not divide."""
        model_fits.check_kind(model)
        blocks, experts = len(model.blocks), getattr(model.config, "experts", 0)
        stages = self.make_schedule().num_stages
        layers = blocks + 2
        if stages > layers:
            raise ValueError(
                f"an embedding, {plural(blocks, 'block')} and a head are {layers} layers, and pp({self.pp}) with "
                f"{self.schedule_name} has {stages} stages: each takes at least one layer"
            )
        if self.layers is not None and (
            len(self.layers) != stages or sum(self.layers) != layers or min(self.layers) < 1
        ):
            raise ValueError(
                f"layers says how many each of {plural(stages, 'stage')} has of {layers} (an embedding, "
                f"{plural(blocks, 'block')}, a head), at least one; got "
                f"{' + '.join(map(str, self.layers))} = {sum(self.layers)}"
            )
        if self.ep > 1 and not experts:
            raise ValueError(f"ep({self.ep}) gives out experts, and the model has none")
        if experts % self.ep:
            raise ValueError(f"{experts} experts do not divide by ep({self.ep})")
        if self.tp > 1:
            try:
                tensor_parallel.check_plan(model, tensor_parallel.transformer_plan(model), self.tp)
            except ValueError as error:
                raise ValueError(f"tp({self.tp}): {error}") from None
        model_fits.check_heads(model, self.tp, self.cp, self.context, self.dp_shard)
        if self.dp_shard > 1:
            model_fits.check_ties(model, self.make_schedule(), self.dp_shard)
        if self.sequence and experts:
            raise ValueError(
                f"sequence=True is for blocks with one MLP, and these have {plural(experts, 'expert')}: "
                "gates take tokens that the tp ranks have alike"
            )
        if self.sequence and self.tp == 1:
            raise ValueError("sequence=True cuts tokens over the tp ranks, and tp is 1")

    def check_batch(self, samples: int, tokens: int) -> None:
        """Raises ValueError for fewer samples than micro-batches, and a sequence that does not divide."""
        if samples < self.micro_batches:
            raise ValueError(
                f"{plural(samples, 'sample')} cannot make micro_batches({self.micro_batches})"
            )
        zigzag = 2 if self.cp > 1 and self.order == "zigzag" else 1
        cut = self.tp if self.sequence else 1
        parts = zigzag * self.cp * cut
        if tokens % parts:
            how = [f"cp({self.cp})"] if self.cp > 1 else []
            how += ["2 chunks per rank (zigzag)"] if zigzag > 1 else []
            how += [f"tp({self.tp}) of sequence=True"] if cut > 1 else []
            raise ValueError(
                f"a sequence of {tokens} tokens does not divide by {' x '.join(how)} = {parts}: pad it by tokens whose "
                "targets are -100"
            )

    @property
    def order(self) -> str:
        """Of the tokens on the cp ranks: causal attention is equal work for all in zig-zag order; Ulysses has none."""
        return "zigzag" if self.context == "ring" else "contiguous"

    @property
    def schedule_name(self) -> str:
        """In words."""
        return self.make_schedule().name

    def make_schedule(self) -> Schedule:
        """The pipeline's; with pp = 1 one stage, and its micro-batches one after the other."""
        made = self.schedule(self.pp, self.micro_batches)
        if not isinstance(made, Schedule):
            asked = f"schedule({self.pp}, {self.micro_batches})"
            raise ValueError(f"{asked} makes a pipeline_parallel.Schedule; got {made!r}")
        return made


def _whole(name: str, value: Any) -> int:
    """A whole number of any kind (NumPy's too), as int."""
    if not isinstance(value, bool) and hasattr(value, "__index__"):
        return operator.index(value)
    raise ValueError(f"{name} is a whole number; got {value!r}")


def _several(name: str, value: Any) -> Sequence[Any]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError(f"{name} is a tuple or a list; got {value!r}")
    return value


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"
