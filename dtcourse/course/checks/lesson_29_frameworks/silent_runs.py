"""Short data-parallel runs, one of which may be configured wrongly without an error, and what is logged of them.

What a diagnosis is asked about. The ranks are in one process; each has weights of its own, and steps with what it uses.
"""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

STEPS, NUMBERS, EACH = 6, 3, 2  # steps; weights of the model; samples of a rank per step
Diagnosis = tuple[str, int | None]
Step = dict[str, Any]


def rounded(numbers: Tensor) -> list[float]:
    """As a log has them: to about six digits."""
    return [float(f"{value:.6e}") for value in numbers]


def drawn(kind: str, turn: int) -> tuple[tuple[int, float, list[Step]], Diagnosis]:
    """A run with this mistake, or "healthy": (ranks, learning rate, log), and its diagnosis.

    turn: 0 to 3: 2, 3 and 4 ranks are in turns 1 to 3; in turn 0 it is rank 0 that is left out
    """
    ranks = (random.choice((2, 3, 4)), 2, 3, 4)[turn]
    since = random.randrange(1, STEPS - 1)
    first = 0 if kind == "left out" else 1  # of two that read the same, it is not rank 0
    culprit = first if turn == 0 else random.randrange(first, ranks)
    lr = random.choice((0.03, 0.05, 0.1))
    where = {"repeated": culprit, "frozen": since, "kept": since, "left out": culprit}.get(kind)
    return (ranks, lr, _log(kind, ranks, since, culprit, lr)), (kind, where)


def _log(kind: str, ranks: int, since: int, culprit: int, lr: float) -> list[Step]:
    size = STEPS * EACH * ranks
    x, noise = torch.randn(size, NUMBERS, dtype=torch.double), torch.randn(size).double()
    y = x @ torch.randn(NUMBERS, dtype=torch.double) + noise
    order = torch.randperm(size).view(STEPS, ranks, EACH)
    weights = [torch.randn(NUMBERS, dtype=torch.double)] * ranks
    used_before = [torch.zeros(NUMBERS, dtype=torch.double)] * ranks
    log: list[Step] = []
    for step in range(STEPS):
        read = [order[step, rank] for rank in range(ranks)]
        if kind == "alone":  # each is rank 0 of a world of one, which reads the whole batch
            read = [order[step].flatten()] * ranks
        if kind == "repeated" and step >= since:
            read[culprit] = read[0]
        own = [2 * x[i].T @ (x[i] @ w - y[i]) / len(i) for i, w in zip(read, weights, strict=True)]
        mean = torch.stack(own).mean(0)
        used = own if kind == "alone" else [mean] * ranks
        if kind == "left out" and step >= since:
            others = [gradient for rank, gradient in enumerate(own) if rank != culprit]
            used = [torch.stack(others).sum(0) / ranks] * ranks
        if kind == "kept" and step >= since:
            used = [a + b for a, b in zip(used, used_before, strict=True)]
        moves = not (kind == "frozen" and step >= since)
        after = [w - lr * g if moves else w for w, g in zip(weights, used, strict=True)]
        log.append(
            {
                "read": [i.tolist() for i in read],
                "before": list(map(rounded, weights)),
                "own": list(map(rounded, own)),
                "used": list(map(rounded, used)),
                "after": list(map(rounded, after)),
            }
        )
        weights, used_before = after, used
    return log
