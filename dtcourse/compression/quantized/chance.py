"""Rounding up or down by chance, so that the expectation is the number itself: what QSGD,
TernGrad and integers share.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


class Chance:
    """Draws other numbers on each rank, so that errors average out over the ranks,
    and from no generator but its own.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._random: torch.Generator | None = None

    def round_(self, steps: Tensor) -> Tensor:
        """In place, (n,): up or down to a whole number; the expectation is the number, to 2^-17."""
        if self._random is None:
            rank = dist.get_rank() if dist.is_initialized() else 0
            self._random = torch.Generator(steps.device).manual_seed(self.seed * 1_000_003 + rank)
        # A uniform number of 16 bits a number, four from one 64-bit draw: several times as fast as torch.rand.
        draws = torch.empty(-(-len(steps) // 4), dtype=torch.int64, device=steps.device)
        draws.random_(-(2**63), None, generator=self._random)
        chance = draws.view(torch.int16)[: len(steps)].float()
        return steps.add_(chance.add_(32768.5), alpha=2.0**-16).floor_()
