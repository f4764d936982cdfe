"""All ways to give a number of ranks to the axes, and training on one of them beside one process."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from dtcourse import launch
from dtcourse.hybrid import HybridConfig, HybridTraining, parallelize
from dtcourse.hybrid.config import AXES
from dtcourse.memory import GradScaler
from dtcourse.models import Transformer, TransformerConfig
from dtcourse.parameters.whole import full_gradients, full_state_dict
from dtcourse.verify import compare
from tests.pairs.layouts import build, sgd, used

# Tied, with biases and a vocabulary that does not divide; the harness freezes a matrix and a norm.
TIED = TransformerConfig(vocab=31, n_layers=2, d_model=16, n_heads=4, max_length=8)
# Llama's: grouped heads, rotary positions, which every stage needs.
GROUPED = TransformerConfig(
    vocab=31, n_layers=2, d_model=16, n_heads=4, n_kv_heads=2, d_ff=24, max_length=8, tied=False, bias=False,
    positions="rotary", norm="rms", mlp="swiglu",
)  # fmt: skip
MODELS = {"tied": TIED, "grouped": GROUPED}
MIXTURE = TransformerConfig(
    vocab=31, n_layers=2, d_model=16, n_heads=4, max_length=8, d_ff=8, experts=4, balancing=0.1,
    shared_experts=1,
)  # fmt: skip
MICRO_BATCHES, STEPS, MAX_NORM = 2, 3, 0.3
IGNORED = -100
# What is one more of a kind: in CI two thirds where the package has just changed, else a third (tests/rotation.py).
BY_TURNS = pytest.mark.stands_on(
    "dtcourse/hybrid/", "tests/hybrid/layouts.py", share=(1, 3), lately=(2, 3)
)


def vectors(ranks: int) -> list[dict[str, int]]:
    """Every way in which five degrees multiply to `ranks`: 5 for 2, 15 for 4, 35 for 8."""
    divisors = [n for n in range(1, ranks + 1) if ranks % n == 0]
    found = itertools.product(divisors, repeat=len(AXES))
    return [dict(zip(AXES, v, strict=True)) for v in found if math.prod(v) == ranks]


def orders(degrees: dict[str, int]) -> list[tuple[str, ...]]:
    """Every order of the axes that have several ranks; the others stay behind."""
    wide = [name for name in AXES if degrees[name] > 1]
    rest = tuple(name for name in AXES if degrees[name] == 1)
    return [(*order, *rest) for order in itertools.permutations(wide)]


def named(degrees: dict[str, int], axes: tuple[str, ...] = AXES) -> str:
    """In a test's name."""
    return " x ".join(f"{name} {degrees[name]}" for name in axes if degrees[name] > 1)


def batch(config: TransformerConfig, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and what follows them; documents are uneven, so some targets count nothing.

    As many samples as a sequence has tokens: what needs more ranks has longer sequences.
    """
    samples = config.max_length
    make = torch.Generator().manual_seed(step)
    shape = (samples, config.max_length + 1)
    tokens = torch.randint(config.vocab, shape, generator=make)
    targets = tokens[:, 1:].clone()
    for i, length in enumerate(torch.randint(2, config.max_length + 1, (samples,), generator=make)):
        targets[i, int(length) :] = IGNORED
    return tokens[:, :-1], targets


@dataclass
class Found:
    """What training has left behind."""

    losses: list[float | None] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    gradients: list[dict[str, Any]] = field(default_factory=list)
    state: dict[str, torch.Tensor] = field(default_factory=dict)


def alone(config: TransformerConfig, data_ranks: int = 1, steps: int = STEPS) -> Found:
    """One process on the whole batch, in plain PyTorch.

    data_ranks: where gates have a loss, which is about a micro-batch of all ranks with different samples
    """
    model, found = build(config), Found()
    optimizer = sgd(model)
    for step in range(steps):
        optimizer.zero_grad()
        tokens, targets = batch(config, step)
        losses = []
        for part in micro_batches(config.max_length, data_ranks):
            logits, right = model(tokens[part]).flatten(0, 1), targets[part].flatten()
            loss = F.cross_entropy(logits, right, reduction="sum") / (targets != IGNORED).sum()
            gates = [m.auxiliary_loss for m in model.modules() if hasattr(m, "auxiliary_loss")]
            losses.append(loss + sum(gates) / MICRO_BATCHES)
            losses[-1].backward()
        found.losses.append(sum(losses).item())
        grads = {n: p.grad for n, p in model.named_parameters()}
        found.gradients.append({n: None if g is None else g.clone() for n, g in grads.items()})
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        found.norms.append(norm.item())
        optimizer.step()
    found.state = {n: t.clone() for n, t in model.state_dict().items()}
    return found


def micro_batches(samples: int, data_ranks: int) -> list[torch.Tensor]:
    """The samples of each: of every rank's part of the data its first, its second, ..."""
    parts = torch.arange(samples).view(data_ranks, MICRO_BATCHES, -1)
    return [parts[:, i].flatten() for i in range(MICRO_BATCHES)]


def start(config: TransformerConfig, cut: HybridConfig, seed: int | None = None) -> HybridTraining:
    """Only the first rank's start is the truth's."""
    if seed is None:
        seed = 0 if torch.distributed.get_rank() == 0 else 5
    model: Transformer = build(config, seed)
    return parallelize(model, cut.mesh("cpu"), cut)


def own_samples(training: HybridTraining, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """Those of this rank's part of the data."""
    return [t.chunk(training.data_ranks)[training.data_rank] for t in tensors]


def together(config: TransformerConfig, cut: HybridConfig, steps: int = STEPS) -> Found:
    """The same on this rank of many, the second step under a loss scaler."""
    training, found = start(config, cut), Found()
    optimizer = sgd(training.module)
    scaler = GradScaler(init_scale=1024.0, model=training.module)
    for step in range(steps):
        optimizer.zero_grad()
        scale = scaler.scale if step == 1 else None
        found.losses.append(training.step(*own_samples(training, *batch(config, step)), scale))
        if scale is not None:
            scaler.unscale_(optimizer)
        found.gradients.append(full_gradients(training.module))
        found.norms.append(training.clip_grad_norm(MAX_NORM).item())
        optimizer.step()
    found.state = full_state_dict(training.module)
    return found


truth = functools.cache(alone)


def check(cut: HybridConfig, config: TransformerConfig) -> None:
    """Every rank's losses, gradients, norms and state are one process's."""
    right = truth(config, cut.dp_replicate * cut.dp_shard)
    runs = launch(together, cut.ranks, config, cut)
    heard = [run.losses for run in runs if run.losses[0] is not None]
    assert len(heard) * cut.pp == cut.ranks, "the last stage's ranks know the loss, and no others"
    for losses in heard:
        assert losses == pytest.approx(right.losses, rel=1e-12)
    for rank, found in enumerate(runs):
        for step, (mine, theirs) in enumerate(zip(found.gradients, right.gradients, strict=True)):
            compare(mine, used(theirs), 1e-12, f"rank {rank}, step {step}: gradient", norm=2)
        assert found.norms == pytest.approx(right.norms, rel=1e-12)
        compare(found.state, used(right.state), 1e-12, f"rank {rank}: value", norm=2)
