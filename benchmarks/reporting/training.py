"""Training steps of a transformer, for the benchmarks whose work that is: their options, their loss, their turns."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from torch import nn

from dtcourse.models import TransformerConfig
from reporting import pairs

Trained = tuple[nn.Module, torch.optim.Optimizer]


def parser(
    doc: str | None, output: Path, count: str = "--steps", ranks: int | list[int] = 2
) -> argparse.ArgumentParser:
    """The options that all have: ranks, how many pairs (called `count`), the transformer's and the batch's sizes,
    a file.

    ranks: the default; a list where the benchmark runs on several numbers of ranks in turn
    """
    options = argparse.ArgumentParser(description=(doc or "").split("\n\n")[0])
    several = "+" if isinstance(ranks, list) else None
    options.add_argument("--ranks", type=int, default=ranks, nargs=several)
    options.add_argument(count, type=int, default=12)
    options.add_argument("--layers", type=int, default=6)
    options.add_argument("--width", type=int, default=384)
    options.add_argument("--batch", type=int, default=4)
    options.add_argument("--length", type=int, default=64)
    options.add_argument("--output", type=Path, default=output)
    return options


def config(options: argparse.Namespace) -> TransformerConfig:
    """The transformer that these options ask for."""
    return TransformerConfig(
        vocab=256,
        n_layers=options.layers,
        d_model=options.width,
        n_heads=6,
        max_length=options.length,
    )


def loss(model: nn.Module, tokens_BS: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of the next token."""
    logits_BSV = model(tokens_BS[:, :-1])
    return nn.functional.cross_entropy(logits_BSV.flatten(0, 1), tokens_BS[:, 1:].flatten())


def in_turns(
    made: Mapping[str, Trained], tokens_BS: torch.Tensor, count: int
) -> dict[str, list[tuple[float, float]]]:
    """Steps of each in turns, on this rank: seconds as `pairs.timed_step` has them."""

    def step(name: str) -> tuple[float, float]:
        model, optimizer = made[name]
        return pairs.timed_step(partial(loss, model, tokens_BS), optimizer)

    return pairs.in_turns({name: partial(step, name) for name in made}, count)
