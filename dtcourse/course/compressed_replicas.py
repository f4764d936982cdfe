"""The mean of many replicas' gradients as dtcourse.compression makes it on real ranks, in one process: for studies.

A gradient of p ranks is a tensor X_PN, one row a rank, of numbers in the order of `model.parameters()`. Each class here
is what one of the package's schemes does with it: the package's own compressors compress and decompress, rank by rank,
and what travels between ranks is a sum, a row or a part of this tensor. A test proves each equal to real ranks.

    Averaged     wire.averaging, three of its schemes, with error feedback or without
    Ternary      average_ternary
    Voted        majority_vote
    LowRank      PowerSGDState
    DeepGradient DeepGradientState

    P  ranks      N  numbers of a model
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dtcourse.compression import Compressor, Payload, PowerSGDState
from dtcourse.compression.compressor import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from dtcourse.compression.matrices import orthonormal
from dtcourse.compression.quantized.stochastic_rounding import StochasticRounding
from dtcourse.compression.quantized.ternary import CLIP, scale_of, ternary
from dtcourse.compression.sparse.top_k import kept

Shapes = Sequence[torch.Size]


def generator_of(rank: int, seed: int = 0) -> torch.Generator:
    """What StochasticRounding draws with on that rank."""
    return torch.Generator().manual_seed(seed * 1_000_003 + rank)


def on_rank(compressor: Compressor, rank: int) -> Compressor:
    """The compressor, whose chance is that of a rank: in one process all would be rank 0's."""
    state = compressor.state_dict()
    if "back" in state:
        for stage in (state, state["back"]):
            stage["random"] = generator_of(rank, stage["seed"]).get_state()
        compressor.load_state_dict(state)
    return compressor


class Averaged:
    """`average` over so many ranks. make: a compressor; feedback: what is left out is sent later."""

    def __init__(self, make: Callable[[], Compressor], ranks: int, feedback: bool = False) -> None:
        self.compressors = [on_rank(make(), rank) for rank in range(ranks)]
        self.feedback = feedback
        self.left: Any = 0.0
        self.left_of_parts: Any = 0.0
        self.mean = {
            ALL_REDUCE: self._added, ALL_GATHER: self._gathered, REDUCE_SCATTER: self._by_parts
        }[self.compressors[0].scheme]  # fmt: skip

    def __call__(self, X_PN: torch.Tensor) -> torch.Tensor:
        """(N,): the mean that every rank gets, in the dtype of X_PN."""
        return self.mean(X_PN.to(self.compressors[0].takes)).to(X_PN)

    def _added(self, X_PN: torch.Tensor) -> torch.Tensor:
        p, n = X_PN.shape
        each = list(zip(self.compressors, X_PN / p + self.left, strict=True))
        if self.feedback:
            payloads = [c.compress(x) for c, x in each]
            seen = torch.stack(
                [c.decompress(sent) for (c, _), sent in zip(each, payloads, strict=True)]
            )
            self.left = X_PN / p + self.left - seen
        else:
            payloads = [c.compress_share(x, p) for c, x in zip(self.compressors, X_PN, strict=True)]
        wires = zip(*(sent.wire for sent in payloads), strict=True)
        total = tuple(torch.stack(tensors).sum(0) for tensors in wires)
        return self.compressors[0].decompress(Payload(total, n, payloads[0].known))

    def _gathered(self, X_PN: torch.Tensor) -> torch.Tensor:
        X_PN = X_PN + self.left
        rows = zip(self.compressors, X_PN, strict=True)
        Y_PN = torch.stack([c.decompress(c.compress(x)) for c, x in rows])
        self.left = X_PN - Y_PN if self.feedback else 0.0
        return in_turn(Y_PN)

    def _by_parts(self, X_PN: torch.Tensor) -> torch.Tensor:
        X_PN = X_PN + self.left
        p, n = X_PN.shape
        size = -(-n // p)
        parts = torch.nn.functional.pad(X_PN, (0, size * p - n)).view(p, p, size)
        seen = torch.stack([
            torch.stack([c.decompress(c.compress(part)) for part in row])
            for c, row in zip(self.compressors, parts, strict=True)
        ])  # fmt: skip
        mine = in_turn(seen) + self.left_of_parts  # one part a rank
        backs = [c.second_stage() for c in self.compressors]
        sums = torch.stack([c.decompress(c.compress(x)) for c, x in zip(backs, mine, strict=True)])
        if self.feedback:
            self.left, self.left_of_parts = X_PN - seen.view(p, -1)[:, :n], mine - sums
        return sums.flatten()[:n]


def in_turn(X: torch.Tensor) -> torch.Tensor:
    """The mean over the ranks, added in their order: to the last bit what a rank makes that adds what has come."""
    total = X[0].clone()
    for x in X[1:]:
        total += x
    return total / len(X)


class Ternary:
    """`average_ternary`, a layer for each shape. The two ways need no second rounding."""

    def __init__(self, ranks: int, shapes: Shapes) -> None:
        self.sizes = [shape.numel() for shape in shapes]
        self.chances = [StochasticRounding() for _ in range(ranks)]
        for rank, chance in enumerate(self.chances):
            chance.load_state_dict({"seed": 0, "random": generator_of(rank).get_state()})

    def __call__(self, X_PN: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(X_PN[0], dtype=torch.float32)
        layers = X_PN.float().split(self.sizes, dim=1)
        scales = [max(scale_of(x, CLIP) for x in layer) for layer in layers]
        for rank, chance in enumerate(self.chances):
            rows = zip(layers, scales, strict=True)
            total += torch.cat([ternary(layer[rank], scale, chance) for layer, scale in rows])
        for part, scale in zip(total.split(self.sizes), scales, strict=True):
            part *= torch.where(scale.isfinite(), scale, math.nan) / len(X_PN)
        return total.to(X_PN)


class Voted:
    """`majority_vote`: 1 or -1; at a tie the rank decides that counts this part of the numbers."""

    def __call__(self, X_PN: torch.Tensor) -> torch.Tensor:
        p, n = X_PN.shape
        below = X_PN < 0
        count = p - 2 * below.sum(0)
        places = torch.arange(n)
        decides = below[places // -(-n // p), places]
        return torch.where(torch.where(count == 0, decides, count < 0), -1.0, 1.0).to(X_PN)


class LowRank:
    """PowerSGDState(rank), with error feedback and warm start."""

    def __init__(self, rank: int, shapes: Shapes) -> None:
        self.rank, self.shapes = rank, shapes
        self.Q, self.left = dict[int, torch.Tensor](), dict[int, Any]()

    def _draw(self, dtype: torch.dtype) -> None:
        state, random = PowerSGDState(self.rank), torch.Generator().manual_seed(0)
        # A bucket has the parameters in reverse, so the last matrix's Q is drawn first.
        for i, shape in reversed(list(enumerate(self.shapes))):
            if rank := state.rank_of(shape):
                self.Q[i] = torch.randn(shape[1], rank, generator=random, dtype=dtype)

    def __call__(self, X_PN: torch.Tensor) -> torch.Tensor:
        found = []
        if not self.Q:
            self._draw(X_PN.dtype)
        for i, part in enumerate(X_PN.split([shape.numel() for shape in self.shapes], dim=1)):
            if i not in self.Q:
                found.append(part.mean(0))
                continue
            M = part.view(-1, *self.shapes[i]) + self.left.get(i, 0.0)
            basis = orthonormal((M @ orthonormal(self.Q[i])).sum(0))
            self.Q[i] = (M.mT @ basis).mean(0)
            mean = basis @ self.Q[i].T
            self.left[i] = M - mean
            found.append(mean.flatten())
        return torch.cat(found)


class DeepGradient:
    """DeepGradientState after its warm-up, without clipping: momentum correction, in each layer the largest travel.

    masking: the velocity of what is sent becomes 0
    """

    def __init__(
        self, ratio: float, shapes: Shapes, momentum: float = 0.9, masking: bool = True
    ) -> None:
        self.ratio, self.momentum, self.masking = ratio, momentum, masking
        self.sizes = [shape.numel() for shape in shapes]
        self.u: Any = 0.0
        self.v: Any = 0.0

    def __call__(self, X_PN: torch.Tensor) -> torch.Tensor:
        self.u = self.momentum * self.u + X_PN
        self.v = self.v + self.u
        sent = torch.zeros_like(X_PN, dtype=torch.bool)
        layers = zip(self.v.split(self.sizes, dim=1), sent.split(self.sizes, dim=1), strict=True)
        for v, mask in layers:
            size = v.abs().nan_to_num(math.inf)
            mask.scatter_(1, size.topk(kept(v.shape[1], self.ratio), dim=1).indices, True)
        mean = torch.where(sent, self.v, 0.0).mean(0)
        self.v = self.v.masked_fill(sent, 0.0)
        self.u = self.u.masked_fill(sent, 0.0) if self.masking else self.u
        return mean
