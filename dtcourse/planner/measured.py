"""Seconds that somebody has measured, in place of the planner's own: what is left to it is how a step is put together.

Hardware.of("A100 SXM", measured=Measured(products={(8192, 4096, 4096, 1): 1.2e-3}))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

STRETCHES = ("block", "experts", "embedding", "head")


@dataclass(frozen=True, eq=False)
class Measured:
    """What is missing here is computed as ever.

    products:   seconds of one launch of `count` products (m, k) x (k, n), by (m, n, k, count), in the dtype used
    stretches:  of "block", "experts" (a block whose MLP is experts'), "embedding" and "head": seconds of one
                micro-batch on one rank, forward, input gradients, weight gradients, without messages, recomputation
                included
    core:       seconds of attention's core in a block's forward pass, behind which a ring's messages hide
    optimizer:  seconds of the optimizer's step on a rank
    collective: (ranks, stride, kind, bytes) -> seconds; stride: how far apart these ranks are. Bytes as in the
                simulator's cluster_collectives.predict; kinds those, and "send"
    """

    products: Mapping[tuple[int, int, int, int], float] = field(default_factory=dict)
    stretches: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    core: float | None = None
    optimizer: float | None = None
    collective: Callable[[int, int, str, float], float] | None = None

    def __post_init__(self) -> None:
        for name in self.stretches:
            if name not in STRETCHES:
                raise ValueError(f"stretches are {', '.join(STRETCHES)}; got {name!r}")
        for shape in self.products:
            if len(shape) != 4 or min(shape) < 1:
                raise ValueError(f"a product is (m, n, k, count), each 1 or more; got {shape}")
        times = [*self.products.values(), *(t for each in self.stretches.values() for t in each)]
        times += [t for t in (self.core, self.optimizer) if t is not None]
        if any(not seconds >= 0 for seconds in times):
            raise ValueError(f"seconds are 0 or more; got {min(times)}")
