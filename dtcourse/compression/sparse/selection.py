"""The k largest of many numbers, without sorting the many: DGC's sampled, hierarchical selection (Lin et al.
1712.01887, 5).

A hundredth of the numbers says about where the k-th largest lies; a threshold a little below it leaves a few more than
k numbers, and only those are looked at exactly. Where it leaves fewer than k it is lowered. So what comes out is what
topk on all of them gives, whatever the sample was; the sample decides only how long it takes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dtcourse.compression.bits import CHUNK, in_rows

FEW = 1 << 15  # of so many numbers topk is fast enough
SHARE = 0.01  # of the numbers are sampled


def largest(x: Tensor, k: int, share: float = SHARE) -> Tensor:
    """The places of the k numbers of x, (n,), of largest magnitude: (k,), int64, in no order. NaN counts as largest."""
    n = len(x)
    if n < FEW or k > n // 4:
        return x.abs().topk(k, sorted=False).indices
    threshold = sampled_threshold(x, 1.25 * k / n, share)
    for _ in range(8):
        places = at_least(x, threshold)
        if len(places) >= k:
            return places[x[places].abs().topk(k, sorted=False).indices]
        threshold = threshold * 0.8
    return x.abs().topk(k, sorted=False).indices


def sampled_threshold(x: Tensor, ratio: float, share: float = SHARE) -> Tensor:
    """About that magnitude which so large a part of x, (n,), reaches: a scalar, from a share of the numbers."""
    stride = max(1, int(1 / share))
    while stride > 1 and len(x) // stride * ratio < 30:  # too few to go by
        stride //= 2
    sample = x[:: max(1, stride)].abs()
    k = min(len(sample), max(1, round(ratio * len(sample))))
    return sample.topk(k).values[-1] if len(sample) else x.new_zeros(())


def at_least(x: Tensor, threshold: Tensor | float) -> Tensor:
    """The places of numbers whose magnitude is not below the threshold, in order, int64; of NaN too,
    so that it is seen.
    """
    found = [
        (row.flatten().abs() < threshold).logical_not_().nonzero().flatten() + first * CHUNK
        for first, row in in_rows(x, CHUNK)
    ]
    return torch.cat(found) if found else torch.empty(0, dtype=torch.int64, device=x.device)
