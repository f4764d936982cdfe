"""signSGD with majority vote (Bernstein et al. 1810.05291): every rank votes on each number's sign,
and the majority moves it.

One bit of each number goes to the rank that counts its part of them, and one bit comes back:

    all_to_all of parts, count, all_gather      2 (p - 1) ceil(ceil(n / p) / 8) sent by each of p ranks, of n numbers

Both ways are one bit, and there is no scale: the learning rate alone says how far a number moves. The direction of a
number whose gradients are small and noisy is wrong almost half of the time, and more ranks make it right. A rank can do
no more harm than its vote: a NaN votes as above zero, like 0, and is *not* seen afterwards, so look at the loss.

At a tie the vote of the rank that counts decides: a fixed answer would be a drift,
and with two ranks half of all votes are ties.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dtcourse.compression.bits import pack_bits, unpack_bits
from dtcourse.compression.wire.background import group_beside
from dtcourse.compression.wire.exchange import all_gather, all_to_all
from dtcourse.parameters.replicas import Group


def majority_vote(x: Tensor, group: Group = None) -> Tensor:
    """The sign that most ranks have for each number of x, (n,): 1.0 or -1.0, float32, the same on every rank."""
    p, rank = dist.get_world_size(group), dist.get_rank(group)
    size = -(-len(x) // p)
    below = torch.nn.functional.pad(x < 0, (0, size * p - len(x))).view(p, size)
    votes = all_to_all(torch.stack([pack_bits(part) for part in below]), group)
    count = torch.zeros(size, device=x.device)
    for each in votes:
        count += unpack_bits(each, size, unset=1.0, is_set=-1.0)
    lost = torch.where(count == 0, below[rank], count < 0)
    won = all_gather(pack_bits(lost), group)
    signs = [unpack_bits(part, size, unset=1.0, is_set=-1.0) for part in won]
    return torch.cat(signs)[: len(x)]


class MajorityVote:
    """For compression_hook: gradients become 1 or -1, so that SGD takes signSGD's step.

    group: the ranks that vote, the model's. SGD's momentum adds up what was voted; each rank's own momentum before the
           vote (Signum) would be another method.
    """

    signs_only = True  # a weight of the loss changes no sign: heterogeneous/fitting.py

    def __init__(self, group: Group = None) -> None:
        self.group = group

    def begin(self, bucket: Any) -> Callable[[], Tensor]:
        """The function returns the signs that most ranks have for a bucket's gradients: (n,), float32."""
        return partial(majority_vote, bucket.buffer(), group_beside(self.group))
