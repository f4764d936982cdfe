"""What a method of compression is: from a vector to the tensors that travel in its place, and back.

    payload = compressor.compress(x)                  # x: (n,) of float32; payload.wire is what travels
    y = compressor.decompress(payload)                # (n,): what is left of x

A payload's tensors have sizes that depend on n alone, so a receiver can make room for it before it comes, and its bytes
are a formula: compressor.nbytes(n). Where they depend on the numbers too (sparse/thresholds.py), lengths travel first:
ALL_GATHERV.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dtcourse.parameters.replicas import Group
from dtcourse.tensor_bytes import as_bytes

# How the mean of all ranks' vectors is made (wire/averaging.py): what can be added travels as a sum; the rest is
# decompressed where it is added, by the ranks of a part each, or by everyone, who may have to be told lengths first.
ALL_REDUCE, REDUCE_SCATTER = "all-reduce", "reduce-scatter"
ALL_GATHER, ALL_GATHERV = "all-gather", "all-gatherv"


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
    """A method.

    scheme: how the mean is made. ALL_REDUCE where payloads of several ranks can be added, tensor by tensor; else
            REDUCE_SCATTER, ALL_GATHER or ALL_GATHERV
    takes:  the dtype of the vectors, and of what comes back
    slot:   which of its caller's vectors comes next, for a method that remembers something of each (a bucket's
            parameters, an optimizer's parameter); None: it is not said
    """

    scheme: str
    takes: torch.dtype = torch.float32
    slot: Hashable = None

    @abstractmethod
    def layout(self, n: int) -> tuple[tuple[int, torch.dtype], ...]:
        """(numbers, dtype) of each tensor in the payload of n numbers. ALL_GATHERV: the most that they may be."""

    def layout_of(self, nbytes: int, n: int) -> tuple[tuple[int, torch.dtype], ...]:
        """The same, of a payload that has so many bytes. Only ALL_GATHERV looks at them."""
        return self.layout(n)

    @abstractmethod
    def compress(self, x: Tensor) -> Payload:
        """x: (n,), of the dtype that it takes. It is not changed. Where x is not finite, neither is what comes back.

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

    def second_stage(self) -> Compressor:
        """What compresses the sum in REDUCE_SCATTER, in another thread than the one that may compress the next bucket.

        One that draws returns a second one, with a generator of its own, or draws would come in no fixed order.
        """
        return self

    def nbytes(self, n: int) -> int:
        """The bytes of the payload of n numbers. ALL_GATHERV: the most that they may be."""
        return sum(numbers * dtype.itemsize for numbers, dtype in self.layout(n))

    def contraction(self, n: int) -> float | None:
        """Delta, of which it is a contraction for all vectors of n numbers: |C(x) - x|^2 <= (1 - delta) |x|^2.

        In expectation, where it draws. 0 or less: what is left out may be as long as x or longer, and nothing bounds
        what error feedback, which adds it to the next vector, makes of it. None: not known, or what is left out has a
        bound of its own, whatever x is (Threshold). Source: Stich et al. 1809.07599; Karimireddy et al. 1901.09847.
        """
        return None

    def feedback_advice(self) -> str:
        """What makes a contraction of this one, where it is none: the end of a sentence."""
        return ""

    def state_dict(self) -> dict[str, Any]:
        """What it remembers from vector to vector: generators, thresholds. Empty where it remembers nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what state_dict() was."""
        refuse_state(self, state)


LONG = 1 << 25  # numbers: longer than a bucket usually is


def require_contraction(compressor: object, n: int = LONG) -> None:
    """Raises ValueError where the compressor is no contraction for vectors of n numbers: what error feedback needs."""
    delta = compressor.contraction(n) if isinstance(compressor, Compressor) else None
    if delta is None or delta > 0:
        return
    assert isinstance(compressor, Compressor)
    name, advice = type(compressor).__name__, compressor.feedback_advice()
    raise ValueError(
        f"error feedback needs a contraction, and {name} is none: of some vectors of {n} numbers it leaves out "
        f"{1 - delta:.3g} times their square, which is added to the next vector, of which it may leave out as much "
        f"again: nothing bounds that. Leave error feedback out (error_feedback=False, residuals=None)"
        + (f", or {advice}" if advice else "")
    )


@dataclass
class Residuals:
    """What has been left out so far: of this rank's vector (n,),
    and of the part of the sum that it compresses again.

    finite: whether the last mean was; where it was not, what has been left out is what it was before
    """

    own: Tensor | None = None
    part: Tensor | None = None
    finite: bool = True

    def keep(self, mean: Tensor, own: Tensor, part: Tensor | None = None) -> None:
        """Keeps what has been left out of a vector and of its part of the sum, where the mean is finite.

        All ranks see the same mean, so all keep, or none.
        """
        self.finite = is_finite(mean)
        if self.finite:
            self.own, self.part = own, part
        elif self.own is None:
            self.own = torch.zeros_like(own)


def refuse_state(compressor: object, state: dict[str, Any]) -> None:
    """Raises ValueError where a compressor that remembers nothing is given a state with something in it."""
    if state:
        raise ValueError(
            f"{type(compressor).__name__} remembers nothing, and the saved state has {sorted(state)}: it belongs to "
            "another compressor"
        )


def load_generator(generator: torch.Generator, state: dict[str, Any]) -> None:
    """Takes the saved state of a generator. Raises ValueError where it is none, or one of another kind of device."""
    saved, here = state.get("random"), generator.get_state()
    if not isinstance(saved, Tensor) or saved.shape != here.shape:
        found = f"{len(saved)} bytes" if isinstance(saved, Tensor) else f"{sorted(state)}"
        raise ValueError(
            f"the saved state has a generator of {found}, and this one has {len(here)} bytes of its own (on a CPU "
            "others than on a GPU): it belongs to another compressor or device"
        )
    generator.set_state(saved.cpu())


def is_finite(x: Tensor) -> bool:
    """Whether no number of x is NaN or infinite."""
    return not x.numel() or bool(torch.stack(x.aminmax()).isfinite().all())


class Rounds(ABC):
    """A method whose second message follows from all ranks' first ones, so that no payload stands for a vector.

    takes: the dtype of the vectors, and of what comes back
    """

    takes: torch.dtype = torch.float32

    def state_dict(self) -> dict[str, Any]:
        """What it remembers from vector to vector."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what state_dict() was."""
        refuse_state(self, state)

    @abstractmethod
    def begin(self, x: Tensor, group: Group, residuals: Residuals | None) -> Callable[[], Tensor]:
        """averaging.begin: what can be done alone is done now; the function sends, waits and returns the mean.

        x: (n,), not changed
        """


def to_bytes(payload: Payload) -> Tensor:
    """The payload as one message: (nbytes,), uint8."""
    return torch.cat([as_bytes(tensor) for tensor in payload.wire])


def from_bytes(message: Tensor, compressor: Compressor, n: int) -> Payload:
    """The payload of n numbers that `to_bytes` has made a message of."""
    layout = compressor.layout_of(len(message), n)
    parts = message.split([numbers * dtype.itemsize for numbers, dtype in layout])
    # A copy begins where its numbers may begin; the message does so for bytes alone.
    wire = (p if d.itemsize == 1 else p.clone() for p, (_, d) in zip(parts, layout, strict=True))
    return Payload(tuple(p.view(d) for p, (_, d) in zip(wire, layout, strict=True)), n)
