"""A number for a tensor's bits, by which ranks compare what they hold without sending it.

The bytes are taken as whole numbers of 64 bits. Each is mixed and multiplied by the odd number of its place, and all
are summed modulo 2^64: a sum needs no order, so it is as fast as the memory. Any single changed bit changes it, since
an odd factor has an inverse; what changes places is multiplied by other numbers. Two tensors that differ in more than
that have the same sum once in 2^64.
"""

from __future__ import annotations

import torch

from dtcourse.tensor_bytes import as_bytes

_FACTOR = 0x1E3779B97F4A7C15  # odd, and without a pattern
_LOW = 0xFFFFFFFF
_PART = (
    1 << 15
)  # whole numbers at a time: with what is made of them they stay in a processor's cache


def checksum(tensor: torch.Tensor) -> torch.Tensor:
    """A number of 64 bits that depends on every bit of `tensor` and on its place: shape (), int64."""
    words = _words(tensor)
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    odd = torch.arange(1, 2 * min(_PART, words.numel()) + 1, 2, device=words.device)
    for start in range(0, words.numel(), _PART):
        mixed = words[start : start + _PART] * _FACTOR  # whole numbers of 64 bits wrap round
        # Else -x and x of 64 bits could change places unseen: the sign is the last bit, and gone times an even number.
        mixed ^= (mixed >> 32) & _LOW
        total += 2 * start * mixed.sum() + mixed.mul_(odd[: mixed.numel()]).sum()
    return total


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's bytes as int64, with zeros after the last one: a view where its memory begins at a multiple of 8."""
    memory = as_bytes(tensor)
    missing = -memory.numel() % 8
    if missing:
        memory = torch.cat([memory, memory.new_zeros(missing)])
    elif memory.storage_offset() % 8:
        memory = memory.clone()
    return memory.view(torch.int64)
