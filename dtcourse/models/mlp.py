"""The smallest model worth distributing: linear layers with a nonlinearity between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import nn

from dtcourse.models.seeding import seeded


class MLP(nn.Sequential):
    """Linear layers of the given sizes, an activation (and dropout) after each but the last.

    sizes: features of the input, of each hidden layer, of the output: (64, 128, 10) is the classifier of digits.
    Input of any shape whose elements per sample number sizes[0]: (B, 64) and (B, 1, 8, 8) both fit.
    Being an nn.Sequential, it can be cut into pipeline stages by slicing: model[:3].
    """

    def __init__(
        self,
        sizes: Sequence[int] = (64, 128, 10),
        *,
        activation: Callable[[], nn.Module] = nn.ReLU,
        dropout: float = 0.0,
        seed: int = 0,
    ) -> None:
        if len(sizes) < 2 or any(size < 1 for size in sizes):
            raise ValueError(
                f"sizes needs an input and an output size, all at least 1; got {tuple(sizes)}"
            )
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout is a probability below 1; got {dropout}")
        layers: list[nn.Module] = [nn.Flatten()]
        with seeded(seed):
            for i, (n_in, n_out) in enumerate(pairwise(sizes)):
                layers.append(nn.Linear(n_in, n_out))
                if i < len(sizes) - 2:
                    layers.append(activation())
                    if dropout:
                        layers.append(nn.Dropout(dropout))
        super().__init__(*layers)

    def loss(self, x: torch.Tensor, target_B: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy of logits for inputs x against class numbers."""
        return nn.functional.cross_entropy(self(x), target_B)
