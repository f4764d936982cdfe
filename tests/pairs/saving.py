"""Written on one layout, read on another: whatever has `ranks`, and by `training(config, seed)` a model that trains.

A training has `wrapped` (what is saved), `optimizer` and `step(number)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from dtcourse import checkpoint
from dtcourse.hybrid import HybridConfig
from dtcourse.models import TransformerConfig
from dtcourse.parameters.whole import full_state_dict
from dtcourse.sharding import ZeroRedundancyOptimizer
from tests.hybrid import layouts as hybrid_layouts
from tests.pairs.layouts import MAX_NORM, sgd


def write(layout: Any, config: TransformerConfig, folder: str, steps: int) -> dict[str, Any]:
    """Some steps, saved: the whole state."""
    run = layout.training(config)
    for number in range(steps):
        run.step(number)
    checkpoint.save(folder, run.wrapped, run.optimizer)
    return full_state_dict(run.wrapped)


def read(layout: Any, config: TransformerConfig, folders: Sequence[str], steps: int) -> Any:
    """Each of them after the others, into a model that starts elsewhere, so that what was there before is another
    step's: (the whole state, what it is after one step more).
    """
    run, found = layout.training(config, seed=7), []
    zero = isinstance(run.optimizer, ZeroRedundancyOptimizer)
    for folder in folders:
        if zero:  # states of before, which are old after the load
            run.step(0)
            run.optimizer.consolidate_state_dict()
        checkpoint.load(folder, run.wrapped, run.optimizer)
        if zero:
            assert {*run.optimizer.state} <= {*run.optimizer.owned()}, "each rank has its own alone"
            with pytest.raises(RuntimeError, match="consolidate_state_dict"):
                run.optimizer.state_dict()
        loaded = {name: value.clone() for name, value in full_state_dict(run.wrapped).items()}
        run.step(steps)
        found.append((loaded, full_state_dict(run.wrapped)))
    return found


@dataclass(frozen=True)
class Hybrid:
    """All axes at once."""

    name: str
    degrees: Mapping[str, Any] = field(hash=False)

    @property
    def cut(self) -> HybridConfig:
        return HybridConfig(**self.degrees, micro_batches=hybrid_layouts.MICRO_BATCHES)

    @property
    def ranks(self) -> int:
        return self.cut.ranks

    def training(self, config: TransformerConfig, seed: int | None = None) -> Any:
        return HybridRun(config, self.cut, seed)

    def __str__(self) -> str:
        return self.name


class HybridRun:
    """Training by hybrid.parallelize on this rank."""

    def __init__(self, config: TransformerConfig, cut: HybridConfig, seed: int | None) -> None:
        self.config = config
        self.training = hybrid_layouts.start(config, cut, seed)
        self.wrapped = self.training.module
        self.optimizer = sgd(self.wrapped)

    def step(self, number: int) -> None:
        self.optimizer.zero_grad()
        batch = hybrid_layouts.batch(self.config, number)
        self.training.step(*hybrid_layouts.own_samples(self.training, *batch))
        self.training.clip_grad_norm(MAX_NORM)
        self.optimizer.step()
