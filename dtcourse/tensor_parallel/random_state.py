"""Random numbers under tensor parallelism: the same where ranks hold the same, different where each holds its own part.

Dropout of a replicated tensor must drop the same numbers on every rank: else the copies part, and nobody notices.
Dropout inside a parallel region must drop different ones: with one random state for all, rank 1 drops in its heads what
rank 0 drops in its own, and p heads live and die together. (Megatron-LM, Shoeybi et al. 1909.08053, section 3, has this
rule.)

So the default random state is made equal on all ranks of the tensor axis, once, and stays so because every rank draws
alike. In a region a rank leaves it: `different_on_each_rank` draws one seed from it, equal everywhere, and adds the
rank. There is no second state to save: activation checkpointing, which restores the default one, gets the same masks
again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtcourse import device
from dtcourse.parameters.deep_copies import KnowsGroups
from dtcourse.parameters.replicas import Group

FIXED = 0x7E4502  # any number does that all ranks know


def same_on_all_ranks(group: Group = None, source: int | None = 0) -> None:
    """Gives all ranks of the group one random state, from a seed that rank `source` of the group draws: a collective.

    source: None: from a seed that is always the same, and nothing is sent. For another, torch.manual_seed afterwards,
            with one number on all ranks
    """
    if source is None:
        torch.manual_seed(FIXED)
        return
    seed = torch.randint(2**62, ()).to(device.current())
    dist.broadcast(seed, group=group, group_src=source)
    torch.manual_seed(int(seed))


@contextmanager
def different_on_each_rank(group: Group = None) -> Iterator[None]:
    """Draws inside it differ from rank to rank; afterwards all ranks' default random state is equal, as before."""
    seed = int(torch.randint(2**62, ()))
    before = device.random_state()
    torch.manual_seed(seed + dist.get_rank(group))
    try:
        yield
    finally:
        device.set_random_state(before)


class SplitDropout(KnowsGroups, nn.Module):
    """`dropout`, for activations of which each rank holds its own part: every rank draws masks of its own."""

    def __init__(self, dropout: nn.Module, group: Group = None) -> None:
        super().__init__()
        self.dropout, self.group = dropout, group

    def forward(self, *args: Any, **keywords: Any) -> Any:
        if not self.training:
            return self.dropout(*args, **keywords)
        with different_on_each_rank(self.group):
            return self.dropout(*args, **keywords)
