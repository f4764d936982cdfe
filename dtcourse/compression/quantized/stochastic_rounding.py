"""Rounding up or down by chance, so that the expectation is the number itself: what QSGD,
TernGrad and integers share.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dtcourse.compression.compressor import load_generator


class StochasticRounding:
    """Draws other numbers on each rank, so that errors average out over the ranks,
    and from no generator but its own.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._random: torch.Generator | None = None
        self._loaded: Tensor | None = (
            None  # of a saved state, until the first draw says on which device
        )

    def round_(self, steps: Tensor) -> Tensor:
        """In place, (n,): up or down to a whole number; the expectation is the number, to 2^-17."""
        if self._random is None:
            rank = dist.get_rank() if dist.is_initialized() else 0
            self._random = torch.Generator(steps.device).manual_seed(self.seed * 1_000_003 + rank)
            if self._loaded is not None:
                load_generator(self._random, {"random": self._loaded})
                self._loaded = None
        # A uniform number of 16 bits a number, four from one 64-bit draw: several times as fast as torch.rand.
        draws = torch.empty(-(-len(steps) // 4), dtype=torch.int64, device=steps.device)
        draws.random_(-(2**63), None, generator=self._random)
        chance = draws.view(torch.int16)[: len(steps)].float()
        return steps.add_(chance.add_(32768.5), alpha=2.0**-16).floor_()

    def state_dict(self) -> dict[str, Any]:
        """Where this rank's chance has got to; None before it has drawn."""
        drawn = self._random if self._loaded is None else None
        return {"seed": self.seed, "random": self._loaded if drawn is None else drawn.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what state_dict() was; the next draw goes on from there."""
        if not {"seed", "random"} <= set(state):
            raise ValueError(
                f"the saved state has {sorted(state)}, and a method that draws has seed, random, back: it belongs to "
                "another compressor"
            )
        self.seed, self._loaded, self._random = state["seed"], state["random"], None


def drawn_state(chance: StochasticRounding, back: StochasticRounding | None) -> dict[str, Any]:
    """The state of a method that draws. back: with what it compresses the sum, once it has."""
    back = StochasticRounding(chance.seed + 1) if back is None else back
    return {**chance.state_dict(), "back": back.state_dict()}


def load_drawn_state(
    state: dict[str, Any], chance: StochasticRounding, back: StochasticRounding
) -> None:
    """Takes what `drawn_state` was."""
    chance.load_state_dict(state)
    back.load_state_dict(state.get("back", {}))
