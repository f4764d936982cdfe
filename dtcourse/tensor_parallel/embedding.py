"""An embedding whose table is cut by rows: each rank looks up the tokens that it has, and the sum puts them together.
Or by columns: each rank looks up all tokens, and gets its part of each row.

A token's row is on one rank; the others contribute zero. One all-reduce of (tokens, width) forward, none backward: a
rank's rows have a gradient from the tokens that it looked up, and from no others. Source: Megatron-LM, 1909.08053,
section 3.

By rows, per rank of p: ceil(V / p) rows, the last rank's padded with zeros; 2 (p - 1)/p n bytes sent for a result of
n. By columns: ceil(D / p) columns, and nothing is sent, or (p - 1)/p n where all ranks get all columns.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtcourse.parameters.cuts import Sliced
from dtcourse.parameters.replicas import Group
from dtcourse.tensor_parallel import mappings
from dtcourse.tensor_parallel.shards import Sharded


class VocabParallelEmbedding(Sharded):
    """Cuts the rows of `embedding` over the ranks. tokens (...), the same on all ranks -> (..., width), likewise

    padding_idx works as in nn.Embedding. What looks at the whole table or at all tokens (max_norm, scale_grad_by_freq)
    and sparse gradients do not: ValueError.
    """

    def __init__(self, embedding: nn.Embedding, group: Group = None) -> None:
        super().__init__()
        require_plain(embedding)
        self.group = group
        self.num_embeddings, self.embedding_dim = embedding.num_embeddings, embedding.embedding_dim
        self.padding_idx = embedding.padding_idx
        self.shard = Sliced(0, embedding.num_embeddings, group)
        self.weight = self.held("weight", embedding.weight, self.shard)
        # What makes one tensor of the ranks' parts. Another one leaves each rank its own tokens of the sum:
        # sequence_parallel/embedding.py.
        self.total: Callable[[Tensor, Group], Tensor] = mappings.reduce

    def forward(self, tokens: Tensor) -> Tensor:
        start, length = self.shard.start, self.shard.length
        local = tokens - start
        elsewhere = (local < 0) | (local >= self.shard.used)
        local = local.masked_fill(elsewhere, 0)
        # A token that is in no rank's rows would become a zero vector: F.embedding says on all ranks that it is wrong.
        local = local.masked_fill((tokens < 0) | (tokens >= self.num_embeddings), length)
        y = F.embedding(local, self.weight, self._padding_row())
        y = torch.where(elsewhere.unsqueeze(-1), 0.0, y)
        return self.total(y, self.group)

    def _padding_row(self) -> int | None:
        """The row of padding_idx, whose gradient stays zero, if it is among this rank's."""
        if self.padding_idx is None:
            return None
        row = self.padding_idx - self.shard.start
        return row if 0 <= row < self.shard.used else None

    def extra_repr(self) -> str:
        return f"{self.shard.used} of {self.num_embeddings}, {self.embedding_dim}"


class ColumnParallelEmbedding(Sharded):
    """Cuts the columns of `embedding` over the ranks. tokens (...), the same on all ranks -> (..., width / p)

    gather_output: all ranks get all columns: (..., width)

    padding_idx and scale_grad_by_freq work as in nn.Embedding: each rank sees all tokens. max_norm, the norm of a row,
    and sparse gradients do not: ValueError. A width that does not divide is padded, and the last rank has fewer.
    """

    def __init__(
        self, embedding: nn.Embedding, group: Group = None, gather_output: bool = False
    ) -> None:
        super().__init__()
        require_plain(embedding, by="columns")
        self.group, self.gather_output = group, gather_output
        self.num_embeddings, self.embedding_dim = embedding.num_embeddings, embedding.embedding_dim
        self.padding_idx = embedding.padding_idx
        self.scale_grad_by_freq = embedding.scale_grad_by_freq
        self.shard = Sliced(1, embedding.embedding_dim, group)
        self.weight = self.held("weight", embedding.weight, self.shard)

    def forward(self, tokens: Tensor) -> Tensor:
        y = F.embedding(
            tokens, self.weight, self.padding_idx, scale_grad_by_freq=self.scale_grad_by_freq
        )
        if self.gather_output:
            return mappings.gather(y, -1, self.group)[..., : self.embedding_dim]
        return y[..., : self.shard.used]

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.shard.used} of {self.embedding_dim}"


def require_plain(embedding: nn.Embedding, by: str = "rows") -> None:
    """Raises ValueError where an option of the embedding needs what is on other ranks."""
    needs = {
        "rows": ("max_norm", "scale_grad_by_freq", "sparse"),
        "columns": ("max_norm", "sparse"),
    }
    for option in needs[by]:
        if getattr(embedding, option):
            raise ValueError(
                f"an embedding with {option}={getattr(embedding, option)} cannot be cut by {by}; build it without"
            )
