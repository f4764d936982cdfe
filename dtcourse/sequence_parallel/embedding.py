"""From all tokens to each rank's own: where a Transformer's activations become cut along the sequence.

A vocabulary that is cut by rows gives parts of a sum (tensor_parallel/embedding.py). Summed by an all-reduce, all ranks
get all tokens, and each throws away what is not its own. A reduce-scatter gives each its own at once, for half of the
bytes. Learned positions are looked up whole on each rank, from which it takes its own.

Megatron-LM has the reduce-scatter (reduce_scatter_embeddings) where a model has no learned positions.

Bytes per rank of t, n being those of all tokens' activations: (t - 1)/t n forward, as many backward; and for learned
positions (t - 1)/t of their own gradient, which is n / B for B sequences.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from dtcourse.parameters.deep_copies import KnowsGroups
from dtcourse.parameters.replicas import Group
from dtcourse.sequence_parallel.order import DIM, require_equal_parts
from dtcourse.tensor_parallel import mappings
from dtcourse.tensor_parallel.embedding import VocabParallelEmbedding
from dtcourse.tensor_parallel.random_state import SplitDropout


def cut_embeddings(model: Any, group: Group) -> None:
    """From its first dropout on, each rank of the group has its own tokens of `model`, the course's Transformer."""
    if not isinstance(model.token_embedding, VocabParallelEmbedding):
        model.dropout = OwnTokens(model.dropout, group)
        return
    model.token_embedding.total = own_sum
    if model.position_embedding is not None:
        model.position_embedding = CutPositions(model.position_embedding, group)
    model.dropout = SplitDropout(model.dropout, group)


def own_sum(x: Tensor, group: Group) -> Tensor:
    """(B, S, D), a part of a sum -> (B, S/t, D), this rank's tokens of it."""
    size = dist.get_world_size(group)
    require_equal_parts(x.shape[DIM], size, f"{size} ranks")
    return sum_cut(x, group)


def sum_cut(x: Tensor, group: Group) -> Tensor:
    """own_sum of tokens that are known to divide: a reduce-scatter, and an all-gather in backward."""
    return mappings.reduce_scatter(x, DIM, group)


class CutPositions(KnowsGroups, nn.Module):
    """Of the rows of `embedding` for all tokens this rank's: (..., S) -> (..., S/t, D). Its gradient is whole."""

    def __init__(self, embedding: nn.Embedding, group: Group = None) -> None:
        super().__init__()
        self.group, self.weight = group, embedding.weight

    def forward(self, positions: Tensor) -> Tensor:
        return mappings.scatter(F.embedding(positions, self.weight), -2, self.group)


class OwnTokens(KnowsGroups, nn.Module):
    """(B, S, D), the same on all ranks -> this rank's tokens (B, S/t, D), and their dropout,
    whose masks are its own.
    """

    def __init__(self, dropout: nn.Module, group: Group = None) -> None:
        super().__init__()
        self.group, self.dropout = group, SplitDropout(dropout, group)

    def forward(self, x: Tensor) -> Any:
        size = dist.get_world_size(self.group)
        require_equal_parts(x.shape[DIM], size, f"{size} ranks")
        return self.dropout(mappings.scatter(x, DIM, self.group))
