"""Numbers as whole multiples of 2^-f, modulo 2^k: what masks are added to, and what adds up exactly.

A float plus a mask loses its digits, and a sum of floats depends on its order. So each client rounds its numbers once,
to multiples of 2^-f, and from there on all is exact: masks cancel to the last bit, and the sum is the sum of what was
rounded. It is right where it lies in [-2^(k-1), 2^(k-1)): so each of n clients may use an n-th of that range, and a
number that is larger is refused before anything is sent.

int32 and int64 of torch wrap around, which is arithmetic modulo 2^32 and 2^64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class FixedPoint:
    """How numbers are written.

    fraction_bits: f; a number is rounded to a multiple of 2^-f, by at most 2^-(f+1)
    bits:          k, 32 or 64
    """

    fraction_bits: int = 16
    bits: int = 32

    def __post_init__(self) -> None:
        if self.bits not in (32, 64) or not 0 <= self.fraction_bits < min(self.bits, 53):
            raise ValueError(
                f"bits is 32 or 64, and fraction_bits from 0 to below it (52 at most); got {self.bits} and "
                f"{self.fraction_bits}"
            )

    @property
    def dtype(self) -> torch.dtype:
        """What the numbers travel as."""
        return torch.int32 if self.bits == 32 else torch.int64

    def largest(self, num_clients: int) -> float:
        """A client's numbers may be so large, where num_clients are added."""
        return self._limit(num_clients) / 2**self.fraction_bits

    def encode(self, x: Tensor, num_clients: int) -> Tensor:
        """x as whole numbers.

        Raises ValueError where one is no number, or where the sum of so many clients could leave the range.
        """
        if not bool(torch.isfinite(x).all()):
            raise ValueError(
                "a number is NaN or infinite: no whole number stands for it. Nothing was sent"
            )
        scaled = torch.round(x.double() * 2**self.fraction_bits)
        if not bool((scaled.abs() <= self._limit(num_clients)).all()):
            raise ValueError(
                f"a number of size {float(x.abs().max()):.4g} does not fit: with {num_clients} clients, {self.bits} "
                f"bits and {self.fraction_bits} after the point each may send up to {self.largest(num_clients):.4g}. "
                "Nothing was sent. Clip the numbers, or take fewer fraction_bits or bits=64"
            )
        return scaled.to("cpu", self.dtype)  # where masks are made, and messages leave from

    def decode(self, total: Tensor) -> Tensor:
        """The sum as float64, of sums below 2^53 exactly."""
        return total.double() / 2**self.fraction_bits

    def _limit(self, num_clients: int) -> float:
        """The largest double whose num_clients-fold is below 2^(k-1)."""
        if num_clients < 1:
            raise ValueError(f"the sum is of 1 client or more; got {num_clients}")
        exact = ((1 << (self.bits - 1)) - 1) // num_clients
        # a double has 53 bits: rounding to the nearest may be upwards, and past the range
        return float(exact) if int(float(exact)) <= exact else math.nextafter(float(exact), 0.0)
