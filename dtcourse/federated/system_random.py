"""Numbers that nobody can draw again: from the operating system's generator.

A torch.Generator on the CPU keeps 32 bits of its seed, however long that is (ATen, MT19937RNGEngine.h). Who sees some
of its numbers tries 2^32 seeds, some hours of one core, and has all the others. That is enough to repeat a run, and too
little for what has to stay secret: noise, and who was drawn.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import torch
from torch import Tensor


def uniform(shape: Sequence[int]) -> Tensor:
    """In [0, 1), float64: multiples of 2^-53."""
    count = math.prod(shape)
    if not count:
        return torch.zeros(*shape, dtype=torch.float64)
    drawn = torch.frombuffer(bytearray(os.urandom(8 * count)), dtype=torch.int64)
    return ((drawn >> 11) & (2**53 - 1)).double().mul(2.0**-53).reshape(*shape)


def normal(shape: Sequence[int]) -> Tensor:
    """Of N(0, 1), float64 (Box and Muller, 1958)."""
    radius = torch.sqrt(-2 * torch.log1p(-uniform(shape)))
    return radius * torch.cos(2 * math.pi * uniform(shape))
