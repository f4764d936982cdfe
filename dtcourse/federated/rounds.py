"""What happens in a round: the report, what a compressor is to FedAvg, and a change that cannot be added."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor


class UpdateCompressor(Protocol):
    """What compression.Compressor is, as far as it is needed here: it is passed in."""

    takes: torch.dtype

    def compress(self, x: Tensor, /) -> Any:
        """The payload of x; payload.wire are the tensors that travel."""

    def decompress(self, payload: Any, /) -> Tensor:
        """What is left of x."""


@dataclass
class Round:
    """What happened in a round; the same on every rank.

    number:     of the round, from 0
    drawn:      the clients that the server asked
    trained:    those of them that answered
    skipped:    client -> the sentence that says why it did not
    samples:    of those that answered
    down_bytes, up_bytes: from the server to all clients asked, and back from those that answered
    """

    number: int
    drawn: list[int]
    trained: list[int] = field(default_factory=list)
    skipped: dict[int, str] = field(default_factory=dict)
    samples: int = 0
    down_bytes: int = 0
    up_bytes: int = 0


def not_finite(change: Tensor, client: int) -> str:
    """A sentence where a change cannot be added to others'; else nothing."""
    if bool(change.isfinite().all()):
        return ""
    return (
        f"client {client}'s change has a number that is NaN or infinite: it is left out, and the round goes on. Take a "
        "lower lr, or look at its data"
    )
