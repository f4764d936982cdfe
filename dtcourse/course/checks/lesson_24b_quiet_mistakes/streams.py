"""Random numbers that are drawn here, and whose are whose where each rank makes its own from a seed."""

from __future__ import annotations

import torch

NEAR_SEEDS = 65_536  # beyond a seed, in which the streams of its ranks are looked for


def drawn(*shape: int) -> torch.Tensor:
    """Numbers of that shape, in double precision."""
    return torch.randn(shape, dtype=torch.double)


def stride(noise: list[torch.Tensor], seed: int) -> int:
    """How far apart ranks 0 and 1 are, where both have the streams of seeds near this one; else 0."""
    wanted, found = {tuple(one.tolist()): rank for rank, one in enumerate(noise[:2])}, {}
    make = torch.Generator()
    for number in range(seed, seed + NEAR_SEEDS):
        stream = torch.randn(4, generator=make.manual_seed(number))
        if (rank := wanted.get(tuple(stream.tolist()))) is not None:
            found[rank] = number
    return abs(found[1] - found[0]) if len(found) == 2 else 0
