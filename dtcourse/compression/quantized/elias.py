"""QSGD as its authors send it (Alistarh et al. 1610.02132): codes of variable length,
so that the many zeros take a bit each.

Elias's recursive code (omega; the paper's appendix A) says whole numbers from 1 on,
in a prefix code that knows no largest one:

    1: 0        2: 10 0     4: 10 100 0     8: 11 1000 0     16: 10 100 10000 0
                3: 11 0     5: 10 101 0     9: 11 1001 0     ...

Each group says how long the next one is.

As in the paper's dense regime each number of the vector is its level plus 1 in that code, and its sign where it is not
0. With few levels most are 0. Of numbers with a normal distribution QSGD(7) takes 4.06 bits each, with its norms, and
this 1.80; the numbers that arrive are the same. The price: bytes depend on the numbers, so lengths travel first
(ALL_GATHERV) and everyone gathers everyone's. And where a code begins follows from all codes before it. Here a decoder
jumps: where a code that began at a bit would end is looked up for all bits at once, then where two in a row would end,
four, eight, ... It is slow all the same: a microsecond or two a number, on one thread.

Bytes of n numbers in buckets of d: 4 ceil(n / d) + 4 ceil(n / 2^16) + bits, each 2^16 numbers' in whole bytes.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from dtcourse.compression.bits import pack_bits
from dtcourse.compression.compressor import ALL_GATHERV, Payload
from dtcourse.compression.quantized.integers import pack, unpack
from dtcourse.compression.quantized.qsgd import QSGD

STRETCH = 1 << 16  # numbers that are coded together
LONGEST = 15  # bits: the code of 128, the largest level plus 1, and a sign


class EliasQSGD(QSGD):
    """QSGD's numbers, its codes in Elias's. Arguments as QSGD's."""

    scheme = ALL_GATHERV

    def layout(self, n: int) -> tuple[tuple[int, torch.dtype], ...]:
        longest = -(-n * (len(omega(self.levels + 1)) + 1) // 8)
        return (*self._known(n), (longest, torch.uint8))

    def layout_of(self, nbytes: int, n: int) -> tuple[tuple[int, torch.dtype], ...]:
        known = self._known(n)
        rest = nbytes - sum(numbers * dtype.itemsize for numbers, dtype in known)
        return (*known, (rest, torch.uint8))

    def compress(self, x: Tensor) -> Payload:
        plain = super().compress(x)
        # What is not finite may have become any code, and its bucket is NaN anyway.
        codes = unpack(plain.wire[1], self.bits, plain.n).clamp(-self.levels, self.levels)
        coded = [encode(part) for part in codes.split(STRETCH)] if plain.n else []
        lengths = torch.tensor([len(one) for one in coded], dtype=torch.int32, device=x.device)
        empty = torch.empty(0, dtype=torch.uint8, device=x.device)
        return Payload((plain.wire[0], lengths, torch.cat([*coded, empty])), plain.n)

    def decompress(self, payload: Payload) -> Tensor:
        norms, lengths, coded = payload.wire
        codes = torch.empty(payload.n, dtype=torch.int8, device=coded.device)
        for into, part in zip(codes.split(STRETCH), coded.split(lengths.tolist()), strict=False):
            into.copy_(decode(part, len(into)))
        return super().decompress(Payload((norms, pack(codes, self.bits)), payload.n))

    def _known(self, n: int) -> tuple[tuple[int, torch.dtype], ...]:
        return (-(-n // self.bucket), torch.float32), (-(-n // STRETCH), torch.int32)


def omega(number: int) -> str:
    """Elias's recursive code of a whole number from 1 on, as zeros and ones."""
    code = "0"
    while number > 1:
        group = f"{number:b}"
        code, number = group + code, len(group) - 1
    return code


def encode(codes: Tensor) -> Tensor:
    """Codes of -127 to 127, (n,), int8, one behind the other: uint8, whole bytes, the first bit in the lowest place."""
    words = [_word(code) for code in range(-127, 128)]
    lengths = torch.tensor([len(word) for word in words], device=codes.device)
    bits = torch.tensor([[bit == "1" for bit in word.ljust(LONGEST, "0")] for word in words])
    which = codes.int() + 127
    inside = torch.arange(LONGEST, device=codes.device) < lengths[which, None]
    return pack_bits(bits.to(codes.device)[which][inside])


def decode(coded: Tensor, n: int) -> Tensor:
    """The n codes of `encode`, int8."""
    num_bits = 8 * len(coded)
    bits = (coded[:, None] >> torch.arange(8, device=coded.device)).flatten() & 1
    # What the next bits say, from each bit on: which code, and where it ends.
    padded = torch.nn.functional.pad(bits.int(), (0, LONGEST))
    ahead = torch.zeros(num_bits, dtype=torch.int32, device=coded.device)
    for place in range(LONGEST):
        ahead = 2 * ahead + padded[place : place + num_bits]
    values, lengths = (table.to(coded.device) for table in _tables())
    jump = torch.arange(num_bits + 1, device=coded.device)
    jump[:-1] += lengths[ahead]
    jump.clamp_(max=num_bits)
    begins = torch.zeros(1, dtype=torch.int64, device=coded.device)
    # twice as many codes: those that begin as far behind each one as all of these are long
    while len(begins) < n:
        begins = torch.cat([begins, jump[begins]])
        jump = jump[jump]
    return values[ahead[begins[:n]]]


def _word(code: int) -> str:
    return omega(abs(code) + 1) + ("" if code == 0 else "1" if code < 0 else "0")


@functools.cache
def _tables() -> tuple[Tensor, Tensor]:
    """For all that so many bits can be: the code that they begin with, and its length."""
    values = torch.zeros(1 << LONGEST, dtype=torch.int8)
    lengths = torch.ones(1 << LONGEST, dtype=torch.int64)
    for code in range(-127, 128):
        word = _word(code)
        free = LONGEST - len(word)
        begin = int(word, 2) << free
        values[begin : begin + (1 << free)] = code
        lengths[begin : begin + (1 << free)] = len(word)
    return values, lengths
