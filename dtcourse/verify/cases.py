"""Small models with what real ones have: tied, frozen and unused parameters, buffers, several dtypes of input.

Every case is built from a seed, so all ranks can build the same one, and each can build another where a test wants
ranks to start apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A model, the data it takes and its loss.

    build(seed) -> model;  batch(samples, seed) -> (inputs, targets), samples first;  loss(output, targets) -> mean
    """

    name: str
    build: Callable[[int], nn.Module]
    batch: Callable[[int, int], Batch]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    has_unused: bool = False


class _Tied(nn.Module):
    """A tiny language model whose output layer is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.mix = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens_BS: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.mix(self.embed(tokens_BS))))


class _Unused(nn.Module):
    """One layer is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.forgotten, self.out = nn.Linear(6, 5), nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.used(x)))


def _mlp() -> nn.Sequential:
    # Odd sizes: nothing divides evenly by 2, 3 or 4.
    return nn.Sequential(nn.Linear(6, 13), nn.Tanh(), nn.Linear(13, 7), nn.Tanh(), nn.Linear(7, 3))


def _frozen() -> nn.Module:
    model = _mlp()
    model.get_parameter("2.weight").requires_grad_(False)
    model.get_parameter("0.bias").requires_grad_(False)
    return model


def _seeded(make: Callable[[], nn.Module]) -> Callable[[int], nn.Module]:
    def build(seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return make()

    return build


def _vectors(samples: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(samples, 6, generator=generator), torch.randint(
        3, (samples,), generator=generator
    )


def _tokens(samples: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(11, (samples, 6), generator=generator)
    return text[:, :-1], text[:, 1:]


def _token_loss(logits_BSV: torch.Tensor, targets_BS: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits_BSV.flatten(0, 1), targets_BS.flatten())


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case("mlp", _seeded(_mlp), _vectors, F.cross_entropy),
        Case("tied", _seeded(_Tied), _tokens, _token_loss),
        Case("frozen", _seeded(_frozen), _vectors, F.cross_entropy),
        Case("unused", _seeded(_Unused), _vectors, F.cross_entropy, has_unused=True),
    )
}
