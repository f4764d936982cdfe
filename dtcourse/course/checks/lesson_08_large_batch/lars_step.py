"""LARS, one step."""

from __future__ import annotations

import math
from typing import Any

import torch

from dtcourse.course.judging import Answer, Exercise, require

LARS = Exercise(
    "lars_step",
    lesson="08",
    title="LARS, one step",
    takes=("lars_step",),
    target="weights to 1e-12 over 4 steps with a changing rate; a step of lr * trust of a layer's length, for gradients of 1e-6 to 1e6",
    forbidden=("dtcourse.large_batch",),
)
Tensors = list[torch.Tensor]


def _steps(
    lars_step: Any, weights: Tensors, gradients: list[Tensors], settings: list[dict[str, float]]
) -> Tensors:
    velocities = [torch.zeros_like(w) for w in weights]
    with torch.no_grad():
        for g, options in zip(gradients, settings, strict=True):
            lars_step(weights, g, velocities, **options)
    return weights


def _lars(weights: Tensors, gradients: list[Tensors], settings: list[dict[str, float]]) -> Tensors:
    weights = [w.clone() for w in weights]
    velocities = [torch.zeros_like(w) for w in weights]
    for g_of, s in zip(gradients, settings, strict=True):
        for w, g, v in zip(weights, g_of, velocities, strict=True):
            rate = 1.0
            if w.dim() > 1:
                if w.norm() > 0 and g.norm() > 0:
                    rate = s["trust"] * (w.norm() / (g.norm() + s["decay"] * w.norm())).item()
                g = g + s["decay"] * w
            v.mul_(s["momentum"]).add_(g, alpha=s["lr"] * rate)
            w.sub_(v)
    return weights


def _layers(*shapes: tuple[int, ...]) -> Tensors:
    return [torch.randn(shape, dtype=torch.double) for shape in shapes]


def _ask_lars(
    answer: Answer,
    weights: Tensors,
    gradients: list[Tensors],
    settings: list[dict[str, float]],
    hints: list[str],
) -> None:
    right = _lars(weights, gradients, settings)
    got = answer.call(_steps, [w.clone() for w in weights], gradients, settings)
    for i, (mine, theirs) in enumerate(zip(got, right, strict=True)):
        off = (mine - theirs).abs().max().item()
        require(
            off <= 1e-12 * (1 + theirs.abs().max().item()),
            f"After {len(settings)} step(s), the weights of layer {i}, shape {tuple(theirs.shape)}, are up to {off:.2g} off"
            + (" (not a number)" if math.isnan(off) else "")
            + f". {hints[i]}",
        )


@LARS.check("one step of two matrices: each has its own rate", points=2)
def check_one_step(answer: Answer) -> None:
    """No momentum yet, no decay; gradients a thousand times apart."""
    weights, gradients = _layers((4, 3), (5, 4)), _layers((4, 3), (5, 4))
    gradients[1] *= 1000
    settings = [{"lr": 2.0, "trust": 0.01, "momentum": 0.0, "decay": 0.0}]
    _ask_lars(
        answer,
        weights,
        [gradients],
        settings,
        ["Is the ratio |w| / |g| this layer's, or that of all layers?"] * 2,
    )
    for scale in (1e-6, 1e6):
        small = [g * scale for g in gradients]
        got = answer.call(_steps, [w.clone() for w in weights], [small], settings)
        for mine, w in zip(got, weights, strict=True):
            share = ((mine - w).norm() / w.norm()).item()
            require(
                math.isclose(share, 0.02, rel_tol=1e-3),
                f"With gradients times {scale:g}, lr 2 and trust 0.01 a layer should move by 0.02 of its length; yours moves by {share:.3g}.",
            )


@LARS.check("weight decay, in the ratio and in the step", points=2)
def check_decay(answer: Answer) -> None:
    """The denominator is |g| + decay |w|."""
    weights, gradients = _layers((4, 3)), _layers((4, 3))
    settings = [{"lr": 1.0, "trust": 0.1, "momentum": 0.0, "decay": 0.7}]
    _ask_lars(
        answer,
        weights,
        [gradients],
        settings,
        ["Look at the formula again: where does the decay appear? In two places."],
    )


@LARS.check("momentum over four steps, while the rate changes", points=2)
def check_momentum(answer: Answer) -> None:
    """The velocity holds the rate of its own time."""
    weights = _layers((3, 3))
    gradients = [_layers((3, 3)) for _ in range(4)]
    settings = [
        {"lr": lr, "trust": 0.05, "momentum": 0.9, "decay": 0.01} for lr in (1.0, 1.0, 0.1, 2.0)
    ]
    same = [{**s, "lr": 1.0} for s in settings]
    _ask_lars(
        answer, weights, gradients, same, ["Is the velocity kept from step to step, in place?"]
    )
    _ask_lars(
        answer, weights, gradients, settings,
        ["With a constant rate it is right. What goes into the velocity: the gradient, or the gradient times the rate of that step?"],
    )  # fmt: skip


@LARS.check("the corners: biases, and layers that are zero", points=2)
def check_corners(answer: Answer) -> None:
    """One-dimensional parameters: plain SGD with momentum, no decay. A norm of zero: the ratio is 1."""
    weights, gradients = (
        _layers((4,), (3, 2), (2, 2)),
        [_layers((4,), (3, 2), (2, 2)) for _ in range(2)],
    )
    weights[1].zero_()
    gradients[0][2].zero_()
    settings = [{"lr": 0.3, "trust": 0.01, "momentum": 0.9, "decay": 0.1}] * 2
    hints = [
        "It has one dimension, a bias: what does the text say about those?",
        "It starts at zero. With a ratio of zero it would stay there for ever.",
        "Its first gradient is zero: what is then its ratio?",
    ]
    _ask_lars(answer, weights, gradients, settings, hints)
