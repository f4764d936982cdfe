"""All numbers above a threshold: few where a vector is flat, many where it is steep, so lengths have to travel first.

To look for numbers above a threshold takes one pass, where the k largest take several. What is below is kept by error
feedback and grows until it is above. Four ways to a threshold:

    Threshold           fixed, by hand
    SignThreshold       the same; what travels is -t or t, and the rest of the number stays (Strom, Interspeech 2015)
    SampledThreshold    from a sample of each vector, for a target share (deep gradient compression's, Lin et al.
                        1712.01887)
    AdaptiveThreshold   the last step's, for as long as about the target share is above it; else sampled again

A threshold by hand fits no two layers, and no two phases of training (Dryden et al. 2016, who adapt it): too low it
sends everything, too high nothing. A target share costs no more than a pass.

Bytes sent by each of p ranks: (p - 1) (8 + 8 k), k of the rank that sends most: an all-gather takes as much from each,
so the shorter messages are filled up. SignThreshold: (p - 1) (8 + 4 + 4 k).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from dtcourse.compression.compressor import ALL_GATHERV, Compressor, Payload
from dtcourse.compression.sparse.selection import SHARE, at_least, sampled_threshold
from dtcourse.compression.sparse.top_k import checked_ratio


class Threshold(Compressor):
    """Numbers whose magnitude is at least the threshold, and their places. NaN counts as above it, so it is seen."""

    scheme = ALL_GATHERV

    def __init__(self, threshold: float) -> None:
        if not threshold > 0:
            raise ValueError(f"threshold is a magnitude above 0; got {threshold!r}")
        self.threshold = threshold

    def layout(self, n: int) -> tuple[tuple[int, torch.dtype], ...]:
        return (n, torch.float32), (n, torch.int32)

    def layout_of(self, nbytes: int, n: int) -> tuple[tuple[int, torch.dtype], ...]:
        return (nbytes // 8, torch.float32), (nbytes // 8, torch.int32)

    def compress(self, x: Tensor) -> Payload:
        places = at_least(x, self.threshold)
        return Payload((x[places], places.int()), len(x))

    def decompress(self, payload: Payload) -> Tensor:
        values, places = payload.wire
        return values.new_zeros(payload.n).index_copy_(0, places.long(), values)


class SignThreshold(Threshold):
    """-threshold or threshold for what is beyond it, 4 bytes each: a place p travels as p or as -1 - p.

    It wants error feedback: of a number ten times the threshold a tenth travels in each step. A vector that is not
    finite comes out as NaN where it is above the threshold.
    """

    def layout(self, n: int) -> tuple[tuple[int, torch.dtype], ...]:
        return (1, torch.float32), (n, torch.int32)

    def layout_of(self, nbytes: int, n: int) -> tuple[tuple[int, torch.dtype], ...]:
        return (1, torch.float32), (nbytes // 4 - 1, torch.int32)

    def compress(self, x: Tensor) -> Payload:
        places = at_least(x, self.threshold)
        values = x[places]
        value = self.threshold if values.isfinite().all() else torch.nan
        codes = torch.where(values < 0, -1 - places, places).int()
        return Payload((torch.tensor([value], device=x.device), codes), len(x))

    def decompress(self, payload: Payload) -> Tensor:
        value, codes = payload.wire
        signed = torch.where(codes < 0, -value, value)
        places = torch.where(codes < 0, -1 - codes, codes).long()
        return value.new_zeros(payload.n).index_copy_(0, places, signed)


class SampledThreshold(Threshold):
    """ratio: the share that is to be above the threshold; sample: the share that is looked at to find it."""

    def __init__(self, ratio: float = 0.01, *, sample: float = SHARE) -> None:
        self.ratio, self.sample = checked_ratio(ratio), checked_ratio(sample)

    def compress(self, x: Tensor) -> Payload:
        places = at_least(x, self.above_zero(sampled_threshold(x, self.ratio, self.sample)))
        return Payload((x[places], places.int()), len(x))

    def above_zero(self, threshold: Tensor) -> Tensor:
        """The threshold; the smallest there is, where it is 0: of a vector of zeros nothing has to travel."""
        return threshold.clamp(min=torch.finfo(threshold.dtype).tiny)


class AdaptiveThreshold(SampledThreshold):
    """Keeps a threshold from step to step, one for each vector, while the share above it stays near the ratio.

    Which vector it is, a bucket or an optimizer's parameter, is said by `slot`. Where it is not said (vectors that are
    given to `compress` by hand), those of one size share a threshold.

    Where it is more than `tolerance` times the ratio, or less than that part of it, a new one is sampled before
    anything is sent. To raise or lower the old one bit by bit does not settle: with error feedback numbers pile up just
    below it, and a threshold that is a little lower lets all of them through
    (tests/compression/test_thresholds_and_blocks.py has it).
    """

    def __init__(
        self, ratio: float = 0.01, *, tolerance: float = 1.5, sample: float = SHARE
    ) -> None:
        super().__init__(ratio, sample=sample)
        if not tolerance > 1:
            raise ValueError(f"tolerance is a factor above 1; got {tolerance!r}")
        self.tolerance = tolerance
        # By the vector's slot, or by its size.
        self.thresholds: dict[Hashable, Tensor] = {}

    def state_dict(self) -> dict[str, Any]:
        return {"thresholds": {key: one.clone() for key, one in self.thresholds.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if set(state) != {"thresholds"}:
            raise ValueError(
                f"the saved state has {sorted(state)}, and AdaptiveThreshold has thresholds: it belongs to another "
                "compressor"
            )
        self.thresholds = {key: one.clone() for key, one in state["thresholds"].items()}

    def compress(self, x: Tensor) -> Payload:
        n, key = len(x), len(x) if self.slot is None else (self.slot, len(x))
        places = at_least(x, self.thresholds[key].to(x.device)) if key in self.thresholds else None
        wanted = self.ratio * n
        if places is None or not wanted / self.tolerance <= len(places) <= wanted * self.tolerance:
            threshold = self.above_zero(sampled_threshold(x, self.ratio, self.sample))
            places = at_least(x, threshold)
            if threshold.isfinite():
                self.thresholds[key] = threshold
        return Payload((x[places], places.int()), n)
