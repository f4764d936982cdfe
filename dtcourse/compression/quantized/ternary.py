"""TernGrad (Wen et al. 1705.07878): -1, 0 or 1 for each number, by chance, and a scale for each layer.

    q_i = s sign(g_i) b_i        s: the layer's largest magnitude;  b_i is 1 with chance |g_i| / s, else 0

so that the expectation of q is g. One large number makes chances small and q noisy, so each layer is first clipped to c
= 2.5 times its standard deviation: what is clipped is biased, a little, and the rest has far less variance. The
deviation here is from zero, as gradients are taken to scatter around it: from their mean that of a constant layer is 0,
and clipping would remove it.

Five numbers of three values are one of 243: a byte carries five, 1.6 bits a number (the paper counts log2 3 = 1.58).

Scaler sharing: all ranks use the largest of their scales. Then whole numbers can be added, and what comes back is their
sum, a whole number from -p to p, without a second rounding:

    all_reduce of the scales, max                 4 bytes a layer, as that all-reduce
    all_to_all of parts, added, all_gather        (p - 1) (ceil(m / 5) + ceil(m b / 8)) sent by each rank, m = ceil(n /
    p)

b is 4 bits up to 7 ranks, 8 up to 127. Without sharing, TernGrad() is a Compressor like others, and rounds twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dtcourse.compression.compressor import REDUCE_SCATTER, Compressor, Payload
from dtcourse.compression.quantized.integers import pack, unpack
from dtcourse.compression.quantized.stochastic_rounding import (
    StochasticRounding,
    drawn_state,
    load_drawn_state,
)
from dtcourse.compression.wire.background import group_beside
from dtcourse.compression.wire.exchange import all_gather, all_to_all
from dtcourse.compression.wire.of_model import check_whose, whose
from dtcourse.parameters.replicas import Group

CLIP = 2.5  # standard deviations: the paper's c
CHUNK = 5 << 13  # numbers that stay in the cache, in whole bytes


class TernGrad(Compressor):
    """The vector is one layer. clip: in standard deviations; None: not. What is not finite makes all of it NaN."""

    scheme = REDUCE_SCATTER

    def __init__(self, clip: float | None = CLIP, *, seed: int = 0) -> None:
        self.clip, self._chance = checked_clip(clip), StochasticRounding(seed)
        self._back: TernGrad | None = None

    def layout(self, n: int) -> tuple[tuple[int, torch.dtype], ...]:
        return (1, torch.float32), (-(-n // 5), torch.uint8)

    def compress(self, x: Tensor) -> Payload:
        scale = scale_of(x, self.clip)
        parts = [pack_ternary(ternary(part, scale, self._chance)) for part in x.split(CHUNK)]
        return Payload((scale.view(1), torch.cat(parts)), len(x))

    def decompress(self, payload: Payload) -> Tensor:
        scale, packed = payload.wire
        scale = torch.where(scale.isfinite(), scale, torch.nan)
        return unpack_ternary(packed, payload.n, scale)

    def contraction(self, n: int) -> float:
        # Unclipped as IntegerQuantizer's by chance, of one code and one block. Clipped to c deviations, n above c^2:
        # worst are many numbers of c / 4 deviations, and a few so large that nearly all of their square is clipped.
        by_chance = (math.sqrt(max(1, n)) - 1) / 2
        if self.clip is None or n <= self.clip**2:
            return 1 - by_chance
        return 1 - (1 + self.clip**2 / 8 if self.clip <= 4 else self.clip - 1)

    def state_dict(self) -> dict[str, Any]:
        return drawn_state(self._chance, None if self._back is None else self._back._chance)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_drawn_state(state, self._chance, self.second_stage()._chance)

    def second_stage(self) -> TernGrad:
        if self._back is None:
            self._back = TernGrad(self.clip, seed=self._chance.seed + 1)
        return self._back


class TernGradState:
    """For compression_hook: a scale a layer (a parameter), shared by all ranks.

    clip: in standard deviations; None: not;  group: the ranks to average over, the model's;  seed: of the chance
    """

    def __init__(self, clip: float | None = CLIP, group: Group = None, *, seed: int = 0) -> None:
        self.clip, self.group, self._chance = checked_clip(clip), group, StochasticRounding(seed)

    def state_dict(self) -> dict[str, Any]:
        """Where the chance of this rank has got to. Each rank has its own."""
        return {**whose(self.group), **self._chance.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what this rank's state_dict() was."""
        check_whose(state, self.group)
        self._chance.load_state_dict(state)

    def begin(self, bucket: Any) -> Callable[[], Tensor]:
        """Starts with a bucket's gradients; the function returns their mean over the ranks: (n,), float32."""
        x = bucket.buffer().float()
        layers = [p.numel() for p in bucket.parameters()]
        return partial(
            average_ternary, x, layers, self.clip, group_beside(self.group), self._chance
        )


def average_ternary(
    x: Tensor, layers: list[int], clip: float | None = CLIP, group: Group = None,
    chance: StochasticRounding | None = None,
) -> Tensor:  # fmt: skip
    """The mean over the ranks of x, (n,), float32, made ternary by shared scales. layers: their sizes, n together.

    chance: what to draw with; it goes on from call to call. None: the same draws in each call
    """
    if x.dim() != 1 or sum(layers) != len(x):
        raise ValueError(f"layers of {sum(layers)} numbers are no vector of {tuple(x.shape)}")
    chance, p = chance or StochasticRounding(), dist.get_world_size(group)
    size, bits = -(-len(x) // p), bits_of_sum(p)
    # The ranks agree on scales, ...
    scales = torch.stack([scale_of(layer, clip) for layer in x.split(layers)])
    dist.all_reduce(scales, dist.ReduceOp.MAX, group=group)
    each = zip(x.split(layers), scales, strict=True)
    codes = torch.cat([ternary(layer, scale, chance) for layer, scale in each])
    codes = torch.nn.functional.pad(codes, (0, size * p - len(x)))
    # ... a rank adds a part of everyone's codes, ...
    came = all_to_all(torch.stack([pack_ternary(part) for part in codes.split(size)]), group)
    total = torch.zeros(size, device=x.device)
    for part in came:
        total += unpack_ternary(part, size)
    # ... and everyone gets the sums.
    sums = all_gather(pack(total.to(torch.int8), bits), group)
    mean = torch.cat([unpack(part, bits, size) for part in sums])[: len(x)].float()
    for layer, scale in zip(mean.split(layers), scales, strict=True):
        layer *= torch.where(scale.isfinite(), scale, torch.nan) / p
    return mean


def bits_of_sum(p: int) -> int:
    """The bits of a sum of p ternary numbers: one of 2 p + 1."""
    if p > 127:
        raise ValueError(f"sums of up to 127 ranks fit eight bits; the group has {p}")
    return 2 if p == 1 else 4 if p <= 7 else 8


def checked_clip(clip: float | None) -> float | None:
    """Clip, where it is one: else a ValueError."""
    if clip is not None and not clip > 0:
        raise ValueError(f"clip is above 0, in standard deviations, or None; got {clip!r}")
    return clip


# --- one layer ---------------------------------------------------------------------------------------------------


def scale_of(x: Tensor, clip: float | None) -> Tensor:
    """The largest magnitude after clipping, a scalar; infinite where x is not finite: no rank's maximum hides that."""
    if not len(x):
        return x.new_zeros(())
    low, high = x.aminmax()
    scale = torch.maximum(-low, high)
    if clip is not None:
        scale = torch.minimum(scale, clip * torch.linalg.vector_norm(x) / len(x) ** 0.5)
    return torch.where(scale.isfinite(), scale, torch.inf)


def ternary(x: Tensor, scale: Tensor, chance: StochasticRounding) -> Tensor:
    """-1.0, 0.0 or 1.0 for each number, with expectation x / scale; what is beyond the scale is clipped."""
    steps = x * (1.0 / torch.where(scale > 0, scale, 1.0))
    return chance.round_(steps.clamp_(-1, 1))


def pack_ternary(codes: Tensor) -> Tensor:
    """(n,) of -1.0, 0.0, 1.0: five to a byte, in base 3, the first counting least: (ceil(n / 5),), uint8."""
    if len(codes) % 5:
        codes = torch.nn.functional.pad(codes, (0, -len(codes) % 5))
    powers = 3.0 ** torch.arange(5, device=codes.device)
    return (codes.view(-1, 5) @ powers).add_(121).to(torch.uint8)


def unpack_ternary(packed: Tensor, n: int, scale: float | Tensor = 1.0) -> Tensor:
    """The n numbers of `pack_ternary`, times the scale."""
    digits = (torch.arange(256)[:, None] // 3 ** torch.arange(5)) % 3 - 1
    values = digits.to(packed.device, torch.float32) * scale
    return values.index_select(0, packed.int()).flatten()[:n]
