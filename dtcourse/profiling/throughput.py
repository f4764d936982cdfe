"""How fast a step is: samples and tokens per second, and which part of the cards' peak they make of it.

    fast = throughput(step, samples=32, tokens=32 * 1024, peak="H100 SXM")   # called by every rank
    print(fast)                                                              # the same on every rank

    MFU, model FLOPs utilisation:      FLOPs that the model needs per second   / (ranks x peak)
    HFU, hardware FLOPs utilisation:   FLOPs that were executed per second     / (ranks x peak)

They differ by what is computed a second time: recomputed activations, the scores in a fused attention's backward. More
recomputing raises HFU and lowers MFU, so only MFU says whether training got faster (PaLM, Chowdhery et al. 2204.02311,
appendix B; Korthikanti et al. 2205.05198, section 5). Both are of counted operations (dtcourse.profiling.operators).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from dtcourse import device, events
from dtcourse.plural import plural
from dtcourse.profiling.operators import count
from dtcourse.simulator.hardware import accelerator


@dataclass(frozen=True)
class Throughput:
    """One step of all ranks together.

    seconds:     of a step, of the slowest rank
    samples, tokens: in the step, of all ranks; 0 tokens where there are none
    model_flops: floating-point operations that the step needs, of all ranks
    flops:       those that were executed
    ranks:       how many
    peak:        operations per second of one rank's card; None where nobody said

    Raises ValueError for what cannot be.
    """

    seconds: float
    samples: int
    tokens: int
    model_flops: int
    flops: int
    ranks: int = 1
    peak: float | None = None

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ValueError(f"a step takes more than 0 seconds; got {self.seconds}")
        if self.samples < 0 or self.tokens < 0 or self.ranks < 1:
            raise ValueError(
                "samples and tokens are 0 or more, ranks 1 or more; "
                f"got {self.samples}, {self.tokens} and {self.ranks}"
            )
        if not 0 <= self.model_flops <= self.flops:
            raise ValueError(
                f"a step executes at least what its model needs; got model_flops={self.model_flops} and "
                f"flops={self.flops}"
            )
        if self.peak is not None and not self.peak > 0:
            raise ValueError(f"peak is in operations per second, above 0; got {self.peak}")

    @property
    def samples_per_second(self) -> float:
        """Of all ranks."""
        return self.samples / self.seconds

    @property
    def tokens_per_second(self) -> float:
        """Of all ranks."""
        return self.tokens / self.seconds

    @property
    def mfu(self) -> float:
        """0 to 1. ValueError without a peak."""
        return self.model_flops / self.seconds / (self.ranks * self._peak())

    @property
    def hfu(self) -> float:
        """0 to 1; at least the MFU. ValueError without a peak."""
        return self.flops / self.seconds / (self.ranks * self._peak())

    def _peak(self) -> float:
        if self.peak is None:
            raise ValueError(
                'utilisation is a part of a peak: peak="H100 SXM", or in operations per second'
            )
        return self.peak

    def __str__(self) -> str:
        parts = [f"{self.samples_per_second:,.1f} samples/s"]
        if self.tokens:
            parts.append(f"{self.tokens_per_second:,.0f} tokens/s")
        parts.append(f"{self.model_flops / self.seconds / self.ranks / 1e12:.3g} TFLOP/s per rank")
        if self.peak is not None:
            parts.append(f"MFU {self.mfu:.1%}, HFU {self.hfu:.1%}")
        return f"{', '.join(parts)} on {plural(self.ranks, 'rank')}"


def throughput(
    step: Callable[[], Any],
    *,
    samples: int,
    tokens: int = 0,
    peak: float | str | None = None,
    steps: int = 5,
    warm_up: int = 2,
) -> Throughput:
    """Counts one step's operations, then times others. Every rank of the default group calls it, if there is one.

    samples, tokens: in a step of this rank. Ranks that share samples (tensor, pipeline parallelism) share them out:
                     the sums over the ranks are what the step trained on
    peak:            of a rank's card: a name in `hardware.accelerator` (its dense bfloat16 rate), or operations per
                     second
    steps:           timed, without the counter, between two looks at the clock
    warm_up:         before them; the last of these is counted, so there is at least one

    Raises ValueError for fewer than 1 of either, or a card that nobody knows.
    """
    if steps < 1 or warm_up < 1:
        raise ValueError(
            f"at least 1 step is timed and 1 counted before; got steps={steps} and warm_up={warm_up}"
        )
    rate = accelerator(peak).flops if isinstance(peak, str) else peak
    for _ in range(warm_up - 1):
        step()
    counted = count(step)
    device.synchronize()
    start = events.now()
    for _ in range(steps):
        step()
    device.synchronize()
    seconds = (events.now() - start) / steps
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    mine = [samples, tokens, counted.model_flops, counted.flops]
    # whole numbers: in floating point, the operations of a large step would be rounded
    of_all = torch.tensor(mine, dtype=torch.int64, device=device.current())
    if ranks > 1:
        slowest = torch.tensor([seconds], dtype=torch.float64, device=device.current())
        dist.all_reduce(of_all)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        seconds = slowest.item()
    all_samples, all_tokens, needed, executed = of_all.tolist()
    return Throughput(seconds, all_samples, all_tokens, needed, executed, ranks, rate)
