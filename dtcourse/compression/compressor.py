"""What a method of compression is: from a vector to the tensors that travel in its place, and back.

    payload = compressor.compress(x)                  # x: (n,) of float32; payload.wire is what travels
    y = compressor.decompress(payload)                # (n,): what is left of x

A payload's tensors have sizes that depend on n alone, so a receiver can make room for it before it comes, and its bytes
are a formula: compressor.nbytes(n). Where they depend on the numbers too (sparse/thresholds.py), lengths travel first:
LENGTHS.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dtcourse.parameters.replicas import Group

# How the mean of all ranks' vectors is made (wire/averaging.py): what can be added travels as a sum; the rest is
# decompressed where it is added, by the ranks of a part each, or by everyone, who may have to be told lengths first.
SUM, PARTS, EVERYONE, LENGTHS = "sum", "parts", "everyone", "lengths"


@dataclass(frozen=True)
class Payload:
    """What became of a vector of n numbers.

    wire:  the tensors that travel
    known: what the receiver knows without a message (which numbers all ranks have drawn)
    """

    wire: tuple[Tensor, ...]
    n: int
    known: Any = None


class Compressor(ABC):
    """A method. `way` is SUM where payloads of several ranks can be added, tensor by tensor; else PARTS,
    EVERYONE or LENGTHS.

    takes: the dtype of the vectors, and of what comes back
    """

    way: str
    takes: torch.dtype = torch.float32

    @abstractmethod
    def layout(self, n: int) -> tuple[tuple[int, torch.dtype], ...]:
        """(numbers, dtype) of each tensor in the payload of n numbers. LENGTHS: the most that they may be."""

    def layout_of(self, nbytes: int, n: int) -> tuple[tuple[int, torch.dtype], ...]:
        """The same, of a payload that has so many bytes. Only LENGTHS looks at them."""
        return self.layout(n)

    @abstractmethod
    def compress(self, x: Tensor) -> Payload:
        """x: (n,), of the dtype that it takes. It is not changed.

        What is drawn comes from a generator of the compressor's own, never from torch's: a model may draw at the same
        time, and a checkpoint's recomputation has to draw what forward did.
        """

    def compress_share(self, x: Tensor, num_shares: int) -> Payload:
        """compress(x / num_shares): this rank's part of a mean that travels as a sum."""
        return self.compress(x / num_shares)

    @abstractmethod
    def decompress(self, payload: Payload) -> Tensor:
        """(n,), of that dtype, in memory of its own."""

    def decompress_into(self, payload: Payload, out: Tensor) -> Tensor:
        """decompress, into out, (n,), and returns it: to give out fresh memory can take the system longer than all
        else.
        """
        return out.copy_(self.decompress(payload))

    def way_back(self) -> Compressor:
        """What compresses the sum in PARTS, in another thread than the one that may compress the next bucket meanwhile.

        One that draws returns a second one, with a generator of its own, or draws would come in no fixed order.
        """
        return self

    def nbytes(self, n: int) -> int:
        """The bytes of the payload of n numbers. LENGTHS: the most that they may be."""
        return sum(numbers * dtype.itemsize for numbers, dtype in self.layout(n))


@dataclass
class Residuals:
    """What has been left out so far: of this rank's vector (n,),
    and of the part of the sum that it compresses again.
    """

    own: Tensor | None = None
    part: Tensor | None = None


class Rounds(ABC):
    """A method whose second message follows from all ranks' first ones, so that no payload stands for a vector.

    takes: the dtype of the vectors, and of what comes back
    """

    takes: torch.dtype = torch.float32

    @abstractmethod
    def begin(self, x: Tensor, group: Group, residuals: Residuals | None) -> Callable[[], Tensor]:
        """averaging.begin: what can be done alone is done now; the function sends, waits and returns the mean.

        x: (n,), not changed
        """


def to_bytes(payload: Payload) -> Tensor:
    """The payload as one message: (nbytes,), uint8."""
    return torch.cat([tensor.contiguous().view(torch.uint8) for tensor in payload.wire])


def from_bytes(message: Tensor, compressor: Compressor, n: int) -> Payload:
    """The payload of n numbers that `to_bytes` has made a message of."""
    layout = compressor.layout_of(len(message), n)
    parts = message.split([numbers * dtype.itemsize for numbers, dtype in layout])
    # A copy begins where its numbers may begin; the message does so for bytes alone.
    wire = (p if d.itemsize == 1 else p.clone() for p, (_, d) in zip(parts, layout, strict=True))
    return Payload(tuple(p.view(d) for p, (_, d) in zip(wire, layout, strict=True)), n)
