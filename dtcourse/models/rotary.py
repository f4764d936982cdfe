"""Rotary positions: each pair of numbers of a query and a key is turned by an angle that grows with its position.

A product of a query and a key then depends on the distance between them alone: turning both by the same angle changes
nothing. Source: RoFormer, Su et al. 2104.09864, section 3.2.2. The pairs are (x_i, x_(i + E/2)), as in Llama's released
code for PyTorch's Transformers library, not neighbours as in the paper: the same up to the order of the numbers.
"""

from __future__ import annotations

import torch
from torch import nn


class Rotary(nn.Module):
    """x_BHSE -> the same shape, pair i of position s turned by s / base^(2 i / E). It has no parameters.

    d_head: E, even;  base: the slowest pair takes about 2 pi base positions for one turn
    """

    def __init__(self, d_head: int, base: float = 10_000.0) -> None:
        super().__init__()
        if d_head < 2 or d_head % 2:
            raise ValueError(
                f"rotary positions turn pairs of numbers, so d_head is even; got {d_head}"
            )
        if not base > 1:
            raise ValueError(f"the base of rotary positions is above 1; got {base}")
        self.d_head, self.base = d_head, base

    def forward(
        self, x_BHSE: torch.Tensor, positions_S: torch.Tensor | None = None
    ) -> torch.Tensor:
        """positions_S: each token's place in the whole sequence; None means 0, 1, 2, ...; or (B, S), by sample"""
        if positions_S is None:
            positions_S = torch.arange(x_BHSE.shape[-2], device=x_BHSE.device)
        if positions_S.dim() == 2:
            positions_S = positions_S[:, None]  # the same for all heads
        cos_SE, sin_SE = self.angles(positions_S, x_BHSE.dtype)
        first, second = x_BHSE.chunk(2, dim=-1)
        return x_BHSE * cos_SE + torch.cat([-second, first], dim=-1) * sin_SE

    def angles(
        self, positions_S: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine of each position's angles, (S, E) each: both halves have the same."""
        # In double: in half precision position 4097 is position 4096, and in single an angle of thousands is coarse.
        pairs = torch.arange(0, self.d_head, 2, dtype=torch.double, device=positions_S.device)
        angles = positions_S[..., None].double() * self.base ** (-pairs / self.d_head)
        angles_SE = torch.cat([angles, angles], dim=-1)
        return angles_SE.cos().to(dtype), angles_SE.sin().to(dtype)

    def extra_repr(self) -> str:
        return f"d_head={self.d_head}, base={self.base:g}"
