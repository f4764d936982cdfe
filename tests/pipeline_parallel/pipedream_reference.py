"""PipeDream's algorithm in one process, from the paper's formula,
with every version of the weights kept and no autograd.

A stage is x -> tanh(tanh(x V' + a) W' + b); the loss is the mean of squares of (output - target). Micro-batch i changes
version i of every stage's weights to version i + 1, by the gradient that it has with older ones.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Weights = list[torch.Tensor]  # V, a, W, b


def forward(weights: Weights, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What is between the two layers, and the output."""
    v, a, w, b = weights
    hidden = torch.tanh(x @ v.T + a)
    return hidden, torch.tanh(hidden @ w.T + b)


def backward(
    weights: Weights, x: torch.Tensor, hidden: torch.Tensor, y: torch.Tensor, dy: torch.Tensor
) -> tuple[Weights, torch.Tensor]:
    """Gradients of the weights and of the input; `weights` may be others than the forward's."""
    v, _, w, _ = weights
    dw_in = dy * (1 - y**2)
    dv_in = (dw_in @ w) * (1 - hidden**2)
    return [dv_in.T @ x, dv_in.sum(0), dw_in.T @ hidden, dw_in.sum(0)], dv_in @ v


def train(
    start: list[Weights],
    batches: list[tuple[torch.Tensor, torch.Tensor]],
    forward_version: Callable[[int, int], int],
    backward_version: Callable[[int, int], int],
    lr: float,
    momentum: float,
) -> tuple[list[Weights], list[float]]:
    """The last version of each stage's weights, and the losses. Versions by (stage, micro-batch)."""
    history = [[weights] for weights in start]
    speed = [[torch.zeros_like(one) for one in weights] for weights in start]
    losses = []
    for i, (x, target) in enumerate(batches):
        seen = []
        for stage, versions in enumerate(history):
            hidden, y = forward(versions[forward_version(stage, i)], x)
            seen.append((x, hidden, y))
            x = y
        losses.append(float(((x - target) ** 2).mean()))
        dy = 2 * (x - target) / x.numel()
        for stage in reversed(range(len(history))):
            weights = history[stage][backward_version(stage, i)]
            gradients, dy = backward(weights, *seen[stage], dy)
            speed[stage] = [
                momentum * old + new for old, new in zip(speed[stage], gradients, strict=True)
            ]
            latest = history[stage][i]
            history[stage].append(
                [one - lr * step for one, step in zip(latest, speed[stage], strict=True)]
            )
    return [versions[-1] for versions in history], losses
