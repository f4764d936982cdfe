"""QSGD (Alistarh et al. 1610.02132) as its authors prove it: so many levels of a bucket's length, rounded by chance.

    q_i = |v| sign(v_i) l / s        l: s |v_i| / |v|, rounded up or down so that the expectation is v_i

|v| is the 2-norm of a bucket of d numbers, s the number of levels. The expected square of the error is at most
min(d / s^2, sqrt(d) / s) |v|^2 (their lemma 3.1): few levels want small buckets. In their experiments the authors
divide by the largest number in place of the norm, which wastes no level: that is IntegerQuantizer(stochastic=True).
Their proof of few bits codes the many zeros shorter (elias.py); codes here are 2, 4 or 8 bits wide, and the bytes are
known beforehand.

Bytes of n numbers in buckets of d: 4 ceil(n / d) + ceil(n b / 8), b = 2, 4, 8 bits for s up to 1, 7, 127.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from dtcourse.compression.bits import in_rows
from dtcourse.compression.compressor import REDUCE_SCATTER, Compressor, Payload
from dtcourse.compression.quantized.integers import pack, unpack
from dtcourse.compression.quantized.stochastic_rounding import (
    StochasticRounding,
    drawn_state,
    load_drawn_state,
)


class QSGD(Compressor):
    """levels: s, 1 to 127; bucket: numbers that share a norm, 512 in the paper; seed: of the chance.

    A bucket with a NaN or an infinity in it comes out as NaN.
    """

    scheme = REDUCE_SCATTER

    def __init__(self, levels: int = 7, *, bucket: int = 512, seed: int = 0) -> None:
        if not 1 <= levels <= 127:
            raise ValueError(f"levels is 1 to 127, so that a code fits eight bits; got {levels!r}")
        if bucket < 1:
            raise ValueError(f"bucket is a number of numbers, 1 or more; got {bucket!r}")
        self.levels, self.bucket = levels, bucket
        self._chance = StochasticRounding(seed)
        self._back: QSGD | None = None
        self.bits = next(bits for bits in (2, 4, 8) if levels < 2 ** (bits - 1))

    def layout(self, n: int) -> tuple[tuple[int, torch.dtype], ...]:
        return (-(-n // self.bucket), torch.float32), (-(-n * self.bits // 8), torch.uint8)

    def compress(self, x: Tensor) -> Payload:
        codes = torch.empty(len(x), dtype=torch.int8, device=x.device)
        norms = torch.empty(-(-len(x) // self.bucket), device=x.device)
        for first, rows in in_rows(x, self.bucket):
            norm = torch.linalg.vector_norm(rows, dim=1)
            norm = torch.where(norm.isfinite(), norm, torch.nan)
            norms[first : first + len(rows)] = norm
            steps = rows * (self.levels / torch.where(norm > 0, norm, 1.0))[:, None]
            steps = self._chance.round_(steps.flatten().clamp_(-self.levels, self.levels))
            start = first * self.bucket
            codes[start : start + len(steps)] = steps
        return Payload((norms, pack(codes, self.bits)), len(x))

    def decompress(self, payload: Payload) -> Tensor:
        norms, packed = payload.wire
        y = unpack(packed, self.bits, payload.n).float()
        for first, rows in in_rows(y, self.bucket):
            rows *= (norms[first : first + len(rows)] / self.levels)[:, None]
        return y

    def contraction(self, n: int) -> float:
        # With s levels and d numbers alike in a bucket each is t = s / sqrt(d) steps, with a variance of t (1 - t);
        # where t is above 1/2 no variance is above 1/4.
        d, s = min(n, self.bucket), self.levels
        return 2 - math.sqrt(d) / s if d >= 4 * s**2 else 1 - d / (4 * s**2)

    def feedback_advice(self) -> str:
        enough = math.floor(math.sqrt(self.bucket) / 2) + 1
        more = f"at least {enough} levels for buckets of {self.bucket} numbers"
        fewer = f"buckets of at most {4 * self.levels**2 - 1} numbers for {self.levels} levels"
        return f"take {more}, or {fewer}" if enough <= 127 else f"take {fewer}"

    def state_dict(self) -> dict[str, Any]:
        return drawn_state(self._chance, None if self._back is None else self._back._chance)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_drawn_state(state, self._chance, self.second_stage()._chance)

    def second_stage(self) -> QSGD:
        if self._back is None:
            self._back = QSGD(self.levels, bucket=self.bucket, seed=self._chance.seed + 1)
        return self._back
