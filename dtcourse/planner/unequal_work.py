"""What is asked, and answered, of a layout for unequal ranks (unequal.py)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from dtcourse.plural import plural


@dataclass(frozen=True)
class Work:
    """A model's layers, one figure for each.

    costs:       in any unit: FLOPs, or what layer_costs measured; all together they are a rank's seconds per sample
    states:      bytes of parameters, gradients and optimizer states
    activations: bytes that a sample leaves for its backward
    outputs:     bytes of a sample's output, which travels to the next stage, and its gradient back
    gradients:   bytes of gradients; default: a quarter of the states (Adam in single precision)

    Raises ValueError for figures that are not one for each layer, or below 0, and costs that are 0 together.
    """

    costs: Sequence[float]
    states: Sequence[float]
    activations: Sequence[float]
    outputs: Sequence[float]
    gradients: Sequence[float] = field(default=())

    def __post_init__(self) -> None:
        if not self.gradients:
            object.__setattr__(self, "gradients", [one / 4 for one in self.states])
        for name in ("costs", "states", "activations", "outputs", "gradients"):
            each = getattr(self, name)
            if len(each) != len(self.costs) or not all(0 <= one < math.inf for one in each):
                raise ValueError(
                    f"{plural(len(self.costs), 'layer')} need as many {name} of 0 or more; got {list(each)}"
                )
        if not sum(self.costs) > 0:
            raise ValueError("the layers cost nothing, all together")


@dataclass(frozen=True)
class Plan:
    """A layout of unequal ranks.

    stages:  by copy of the pipeline, the rank of each stage
    ranges:  the layers of each stage, the same in all copies
    shares:  samples of the batch of each copy
    seconds: of a step
    memory:  bytes of each rank that takes part
    """

    stages: tuple[tuple[int, ...], ...]
    ranges: tuple[range, ...]
    shares: tuple[int, ...]
    seconds: float
    memory: dict[int, float]

    @property
    def dp(self) -> int:
        """Copies of the pipeline."""
        return len(self.stages)

    @property
    def pp(self) -> int:
        """Stages of each."""
        return len(self.ranges)


def nothing_fits(work: Work, memory: Sequence[float], batch: int, micro_batches: int) -> str:
    """What is missing, as a sentence: of all memory together, or of a rank for one layer."""
    states, held = sum(work.states), sum(memory)
    if states > held:
        return (
            f"the model's states are {states:,.0f} bytes, and the ranks have {held:,.0f} together: shard them, or take "
            "more ranks"
        )
    samples = math.ceil(batch / micro_batches / len(memory))
    layer = max(
        range(len(work.costs)), key=lambda i: work.states[i] + samples * work.activations[i]
    )
    needs = work.states[layer] + samples * work.activations[layer]
    most = max(range(len(memory)), key=lambda rank: memory[rank])
    return (
        f"no layout fits: layer {layer} takes {needs:,.0f} bytes with {plural(samples, 'sample')} at once, and rank "
        f"{most} has the most memory, {memory[most]:,.0f}. Take more micro-batches, recomputation, or a smaller batch"
    )
