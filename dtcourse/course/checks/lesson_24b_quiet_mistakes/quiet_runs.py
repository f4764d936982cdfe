"""Logs of data-parallel runs of which one may be quietly wrong: what a diagnosis is asked about.

Each rank has a copy of its own of what it holds and steps by itself, so a mistake does to a run what it would do on
ranks; all of them are in one process. A healthy run's copies agree bit for bit.
"""

from __future__ import annotations

import hashlib
import random
from typing import Any

import torch
from torch import Tensor

Log = list[dict[str, Any]]
Weights = dict[str, Tensor]

STEPS, EACH, LR = 7, 3, 0.1  # steps; samples of a rank in each; the learning rate
SHAPES = {"embed": (5, 4), "mix": (5, 5), "norm": (5,), "head": (2, 5)}
KINDS = ("skipped", "rate", "flipped", "unaveraged", "samples", "healthy")


def _loss(weights: Weights, x: Tensor, y: Tensor) -> Tensor:
    hidden = torch.tanh(x @ weights["embed"].T)
    hidden = (hidden + torch.tanh(hidden @ weights["mix"].T)) * weights["norm"]
    return (hidden @ weights["head"].T - y).square().sum(1).mean()


def _gradients(weights: Weights, x: Tensor, y: Tensor) -> tuple[float, Weights]:
    leaves = {name: w.clone().requires_grad_() for name, w in weights.items()}
    loss = _loss(leaves, x, y)
    grads = torch.autograd.grad(loss, list(leaves.values()))
    return loss.item(), dict(zip(weights, grads, strict=True))


def _sum(tensor: Tensor) -> int:
    """Of a tensor's bits."""
    return int.from_bytes(hashlib.sha256(tensor.numpy().tobytes()).digest()[:6], "big")


def _norms(tensors: Weights) -> dict[str, float]:
    return {name: float(f"{t.norm().item():.5g}") for name, t in tensors.items()}


def drawn(kind: str) -> tuple[tuple[int, Log], tuple[str, Any]]:
    """A run of some ranks with a mistake of a kind: ((ranks, log), (what, where))."""
    ranks, total = random.randint(3, 6), 0
    total = ranks * EACH * STEPS
    x, y = torch.randn(total, 4, dtype=torch.double), torch.randn(total, 2, dtype=torch.double)
    start = {n: torch.randn(shape, dtype=torch.double) / 2 for n, shape in SHAPES.items()}
    held = [{n: w.clone() for n, w in start.items()} for _ in range(ranks)]
    odd, at, name = (
        random.randrange(ranks),
        random.randrange(1, STEPS - 2),
        random.choice([*SHAPES]),
    )
    other = random.choice([rank for rank in range(ranks) if rank != odd])
    times = random.choice([0.5, 2.0])
    order, log = torch.randperm(total), []
    for step in range(STEPS):
        wrong, now = step >= at, step == at
        parts = [
            order[step * ranks * EACH + rank : (step + 1) * ranks * EACH : ranks]
            for rank in range(ranks)
        ]
        if kind == "samples" and wrong:
            parts[odd] = parts[other]
        found = [_gradients(w, x[part], y[part]) for w, part in zip(held, parts, strict=True)]
        own = [grads for _, grads in found]
        mean = {n: torch.stack([g[n] for g in own]).mean(0) for n in SHAPES}
        used = [dict(mean) for _ in range(ranks)]
        if kind == "unaveraged" and wrong:
            for rank in range(ranks):
                used[rank][name] = own[rank][name]
        for rank in range(ranks):
            lr = LR * times if kind == "rate" and wrong and rank == odd else LR
            if kind == "skipped" and now and rank == odd:
                continue
            held[rank] = {n: w - lr * used[rank][n] for n, w in held[rank].items()}
        if kind == "flipped" and now:
            flat = held[odd][name].view(-1)
            flat[random.randrange(len(flat))] *= 1 + 2**-30
        log.append(
            {
                "read": [part.tolist() for part in parts],
                "loss": [float(f"{loss:.5g}") for loss, _ in found],
                "own": [_norms(grads) for grads in own],
                "used": [_norms(grads) for grads in used],
                "sums": [{n: _sum(w) for n, w in one.items()} for one in held],
            }
        )
    where = {"unaveraged": name, "samples": tuple(sorted((odd, other))), "healthy": None}
    return (ranks, log), (kind, where.get(kind, odd))
