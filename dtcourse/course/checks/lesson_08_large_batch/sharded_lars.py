"""LARS where each rank holds a part of every layer."""

from __future__ import annotations

from typing import Any

import torch

from dtcourse.course.judging import Answer, Exercise, require
from dtcourse.plural import plural

LARS = Exercise(
    "sharded_lars",
    lesson="08",
    title="LARS over shards",
    takes=("sharded_lars",),
    target="shards to 1e-12 of one process's on 1 to 4 ranks; one collective call per step, 16 bytes per layer",
    forbidden=("dtcourse.large_batch", "dtcourse.parameters", "dtcourse.sharding"),
)
Tensors = list[torch.Tensor]
Settings = dict[str, float]


def _steps(
    sharded_lars: Any, weights: Tensors, gradients: list[Tensors], settings: list[Settings]
) -> Tensors:
    import torch.distributed as dist

    def mine(layers: Tensors) -> Tensors:
        return [w.tensor_split(dist.get_world_size())[dist.get_rank()].clone() for w in layers]

    shards = mine(weights)
    velocities = [torch.zeros_like(w) for w in shards]
    with torch.no_grad():
        for g, options in zip(gradients, settings, strict=True):
            sharded_lars(shards, mine(g), velocities, **options)
    return shards


def lars(weights: Tensors, gradients: list[Tensors], settings: list[Settings]) -> Tensors:
    """The whole layers after those steps, by one process."""
    weights = [w.clone() for w in weights]
    velocities = [torch.zeros_like(w) for w in weights]
    for g_of, s in zip(gradients, settings, strict=True):
        for w, g, v in zip(weights, g_of, velocities, strict=True):
            share = 1.0
            if w.dim() > 1:
                if w.norm() > 0 and g.norm() > 0:
                    share = s["trust"] * (w.norm() / (g.norm() + s["decay"] * w.norm())).item()
                g = g + s["decay"] * w
            v.mul_(s["momentum"]).add_(g, alpha=s["lr"] * share)
            w.sub_(v)
    return weights


def _layers(*shapes: tuple[int, ...]) -> Tensors:
    return [torch.randn(shape, dtype=torch.double) for shape in shapes]


def _off(mine: torch.Tensor, right: torch.Tensor) -> float:
    return (mine - right).abs().max().item() if len(right) else 0.0


def _ask(
    answer: Answer,
    ranks: int,
    weights: Tensors,
    gradients: list[Tensors],
    settings: list[Settings],
    hints: list[str],
) -> None:
    whole = lars(weights, gradients, settings)
    run = answer.run(_steps, ranks, weights, gradients, settings, timeout=8.0)
    for rank in range(ranks):
        own = [w.tensor_split(ranks)[rank] for w in weights]
        alone = lars(
            own, [[g.tensor_split(ranks)[rank] for g in g_of] for g_of in gradients], settings
        )
        for i, (mine, layer, hint) in enumerate(zip(run[rank], whole, hints, strict=True)):
            right = layer.tensor_split(ranks)[rank]
            require(
                mine.shape == right.shape,
                f"Rank {rank} of {ranks} holds {len(right)} rows of layer {i}; after the step {tuple(mine.shape)}.",
            )
            off = _off(mine, right)
            if ranks > 1 and len(right) and _off(mine, alone[i]) < 1e-9:
                hint = "It is what the norms of this rank's own rows give. Whose rows are missing?"
            require(
                off <= 1e-12 * (1 + layer.abs().max().item()),
                f"On {plural(ranks, 'rank')}, after {plural(len(settings), 'step')}, rank {rank}'s rows of layer "
                f"{i}, which has the shape {tuple(layer.shape)}, are up to {off:.2g} off. {hint}",
            )


def _settings(**changed: float) -> Settings:
    return {"lr": 2.0, "trust": 0.05, "momentum": 0.0, "decay": 0.0} | changed


@LARS.check("two matrices: each has its own learning rate, on all ranks", points=2)
def check_one_step(answer: Answer) -> None:
    """No momentum yet, no decay; gradients a thousand times apart."""
    weights, gradients = _layers((4, 3), (5, 4)), _layers((4, 3), (5, 4))
    gradients[1] *= 1000
    hint = "Is |w| / |g| this layer's, or that of all layers? And do norms add up over ranks, or their squares?"
    for ranks in (1, 2, 4):
        _ask(answer, ranks, weights, [gradients], [_settings()], [hint] * 2)


@LARS.check("weight decay, in the ratio and in the step", points=1)
def check_decay(answer: Answer) -> None:
    """The denominator is |g| + decay |w|."""
    weights, gradients = _layers((4, 3)), _layers((4, 3))
    hint = "Look at the formula again: where does the decay appear? In two places."
    for ranks in (1, 3):
        _ask(answer, ranks, weights, [gradients], [_settings(decay=0.7)], [hint])


@LARS.check("momentum over four steps, while the learning rate changes", points=2)
def check_momentum(answer: Answer) -> None:
    """The velocity holds the learning rate of its own time."""
    weights = _layers((3, 3))
    gradients = [_layers((3, 3)) for _ in range(4)]
    changing = [_settings(lr=lr, momentum=0.9, decay=0.01) for lr in (1.0, 1.0, 0.1, 2.0)]
    same = [one | {"lr": 1.0} for one in changing]
    hints = (
        "Is the velocity kept from step to step, in place?",
        "With a constant lr it is right. What goes into the velocity: the gradient, or the gradient times the lr of "
        "that step?",
    )
    for settings, hint in zip((same, changing), hints, strict=True):
        _ask(answer, 2, weights, gradients, settings, [hint])


@LARS.check("biases, layers that are zero, a rank without rows", points=2)
def check_corners(answer: Answer) -> None:
    """One-dimensional parameters: plain SGD with momentum, no decay. A norm of zero: the ratio is 1."""
    shapes = (4,), (3, 2), (2, 2)
    weights, gradients = _layers(*shapes), [_layers(*shapes) for _ in range(2)]
    weights[1].zero_()
    gradients[0][2].zero_()
    settings = [_settings(lr=0.3, momentum=0.9, decay=0.1)] * 2
    hints = [
        "It has one dimension, a bias: what does the text say about those?",
        "It starts at zero. With a ratio of zero it would stay there for ever.",
        "Its first gradient is zero: what is then its ratio?",
    ]
    for ranks in (1, 3):
        _ask(answer, ranks, weights, gradients, settings, hints)


@LARS.check("one message of two numbers per layer", points=1, needs=("check_one_step",))
def check_bytes(answer: Answer) -> None:
    """Counted message by message."""
    ranks, layers, steps = 3, 5, 2
    weights = _layers(*[(6, 50)] * layers)
    gradients = [_layers(*[(6, 50)] * layers) for _ in range(steps)]
    settings = [_settings()] * steps
    run = answer.run(
        _steps, ranks, weights, gradients, settings, backend="ring", record=True, timeout=8.0
    )
    calls = run.traffic.calls(rank=0)
    require(
        calls == steps,
        f"{plural(calls, 'collective call')} in {steps} steps of {layers} layers. Which numbers of all layers can "
        "travel together?",
    )
    most = 16 * (ranks - 1) * layers * steps
    for rank in range(ranks):
        sent = run.traffic.bytes_sent(rank=rank)
        require(
            sent <= most,
            f"Rank {rank} sends {sent:,} bytes in {steps} steps of {layers} layers, and {most:,} are enough. What "
            "do the others need to know of its rows?",
        )
