"""Blocks of numbers, or rows of matrices: those of largest norm travel whole,
with one place for all of a block's numbers.

A place costs as much as a number, so single numbers travel at half the bytes' worth; a block of 256 pays a 256th. What
is lost is choice: of a block's numbers most may be small. Rows are natural where a gradient has them: in an embedding
only the rows of the words that occurred are not zero, and exactly those travel (as PyTorch's sparse=True does for
them).

Bytes of n numbers in blocks of b, k of them kept: 4 k b + 4 k. Everyone's come to everyone, as the largest numbers' do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dtcourse.compression.compressor import (
    ALL_GATHER,
    Compressor,
    Payload,
    from_bytes,
    is_finite,
    to_bytes,
)
from dtcourse.compression.sparse.selection import largest
from dtcourse.compression.sparse.top_k import checked_ratio, kept
from dtcourse.compression.wire.background import group_beside
from dtcourse.compression.wire.exchange import all_gather
from dtcourse.compression.wire.of_model import (
    ModelParameters,
    OfModel,
    PerParameter,
    WholeStep,
    check_whose,
    whose,
)
from dtcourse.parameters.replicas import Group


class TopBlocks(Compressor):
    """The ceil(ratio blocks) blocks of largest 2-norm. A block with a NaN in it counts as largest.

    block: numbers in a block; the number of columns makes blocks of a matrix's rows
    """

    scheme = ALL_GATHER

    def __init__(self, ratio: float = 0.01, block: int = 256) -> None:
        if block < 1:
            raise ValueError(f"block is a number of numbers, 1 or more; got {block!r}")
        self.ratio, self.block = checked_ratio(ratio), block

    def layout(self, n: int) -> tuple[tuple[int, torch.dtype], ...]:
        k = kept(-(-n // self.block), self.ratio)
        return (k * self.block, torch.float32), (k, torch.int32)

    def compress(self, x: Tensor) -> Payload:
        blocks = torch.nn.functional.pad(x, (0, -len(x) % self.block)).view(-1, self.block)
        norms = torch.linalg.vector_norm(blocks, dim=1)
        places = largest(norms, kept(len(blocks), self.ratio))
        return Payload((blocks[places].flatten(), places.int()), len(x))

    def contraction(self, n: int) -> float:
        blocks = -(-n // self.block)
        return kept(blocks, self.ratio) / max(1, blocks)

    def decompress(self, payload: Payload) -> Tensor:
        values, places = payload.wire
        blocks = values.new_zeros(-(-payload.n // self.block), self.block)
        blocks.index_copy_(0, places.long(), values.view(-1, self.block))
        return blocks.flatten()[: payload.n]


class TopRows(OfModel):
    """For compression_hook: of each matrix the ceil(ratio rows) rows of largest norm; a bias has rows of one number.

    A parameter of more axes counts as a matrix with its first one, one of none (a learned scale) as one row of one
    number. left_out: by parameter, flat, with error feedback; where a gradient is not finite on any rank it stays as it
    was, on all.
    """

    def __init__(
        self, ratio: float = 0.01, group: Group = None, *, error_feedback: bool = True
    ) -> None:
        self.ratio, self.group = checked_ratio(ratio), group
        self.error_feedback = error_feedback
        self.left_out = PerParameter()
        self._model, self._step = ModelParameters(self.left_out), WholeStep()

    def begin(self, bucket: Any) -> Callable[[], Tensor]:
        """Takes the rows out of a bucket's gradients; the function returns their mean over the ranks: (n,), float32."""
        self._model.check(bucket)
        parameters, group = list(bucket.parameters()), group_beside(self.group)
        rows = [TopBlocks(self.ratio, math.prod(p.shape[1:]) or 1) for p in parameters]
        sizes = [p.numel() for p in parameters]
        gradients = bucket.buffer().float().split(sizes)
        if self.error_feedback:
            gradients = [
                g + self.left_out.get(p, 0.0) for p, g in zip(parameters, gradients, strict=True)
            ]
        payloads = [m.compress(g) for g, m in zip(gradients, rows, strict=True)]
        left = {}
        if self.error_feedback:
            each = zip(parameters, gradients, payloads, rows, strict=True)
            left = {p: g - m.decompress(payload) for p, g, payload, m in each}
        if bucket.index() == 0:
            self._step = WholeStep()
        step, is_last = self._step, bucket.is_last()
        message = torch.cat([to_bytes(payload) for payload in payloads])

        def finish() -> Tensor:
            total = torch.zeros(sum(sizes), device=message.device)
            everyone = all_gather(message, group)
            for theirs in everyone:
                of_layers = theirs.split([m.nbytes(n) for m, n in zip(rows, sizes, strict=True)])
                for sum_, part, m in zip(total.split(sizes), of_layers, rows, strict=True):
                    sum_ += m.decompress(from_bytes(part, m, len(sum_)))
            total /= len(everyone)
            if self.error_feedback:
                step.bucket_done(is_finite(total), is_last, lambda: self.left_out.update(left))
            return total

        return finish

    def reset(self) -> None:
        """Forgets what has been left out: after a jump in the weights, or another loss scale."""
        self.left_out.clear()

    def state_dict(self) -> dict[str, Any]:
        """What this rank has left out. Each rank has its own, and saves it; as CompressionState's."""
        saved = self._model.saved(self.left_out)
        return {**whose(self.group), **self._model.state_dict(), "left_out": saved}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what this rank's state_dict() was. Raises ValueError for one of another rank or model."""
        check_whose(state, self.group)
        self._model.load_state_dict(state)
        self._model.load(self.left_out, state["left_out"])
