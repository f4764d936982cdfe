"""ZeRO-1 on flat equal parts, as DeepSpeed has them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dtcourse.course.judging import Answer, Each, Exercise, require, require_close
from dtcourse.plural import plural

FLAT = Exercise(
    "flat_zero_1",
    lesson="16",
    title="ZeRO-1 on equal parts",
    takes=("flat_zero_1",),
    target="one process's parameters to 1e-6; Adam states of 8 bytes per element "
    "of the part; 2 (p - 1) parts sent per rank",
    forbidden=(
        "torch.distributed.optim",
        "torch.distributed.fsdp",
        "dtcourse.parameters",
        "dtcourse.sharding",
    ),
)

SHAPES = [(7, 6), (7,), (5, 7), (5,), (3, 5)]
N = sum(torch.Size(s).numel() for s in SHAPES)
STEPS = 3


def _flat(
    flat_zero_1: Any, start: list[torch.Tensor], gradients: list[list[torch.Tensor]], kind: str,
    options: dict[str, float],
) -> tuple[list[torch.Tensor], int]:  # fmt: skip
    """Parameters after some steps, and bytes of the optimizer's states of more than one number."""
    parameters = [nn.Parameter(p.clone()) for p in start]
    optimizer = flat_zero_1(parameters, getattr(torch.optim, kind), **options)
    for step in gradients:
        for p, g in zip(parameters, step, strict=True):
            p.grad = g.clone()
        optimizer.step()
    values = [v for state in optimizer.state.values() for v in state.values()]
    held = sum(v.nbytes for v in values if isinstance(v, torch.Tensor) and v.numel() > 1)
    return [p.detach().clone() for p in parameters], held


def _gradients(ranks: int) -> list[list[torch.Tensor]]:
    """Of a step, by rank. No mean is near zero, where Adam's step would be as long, and go where rounding says."""
    each = [torch.randn(ranks, *s) for s in SHAPES]
    means = [torch.where(torch.rand(s) < 0.5, -1.0, 1.0) * (0.5 + torch.rand(s)) for s in SHAPES]
    moved = [x - x.mean(0) + mean for x, mean in zip(each, means, strict=True)]
    return [[x[rank] for x in moved] for rank in range(ranks)]


def _train(
    answer: Answer, ranks: int, kind: str, options: dict[str, float], **more: Any
) -> tuple[Any, list[torch.Tensor]]:
    start = [torch.randn(s) for s in SHAPES]
    gradients = [_gradients(ranks) for _ in range(STEPS)]
    own = Each(list(zip(*gradients, strict=True)))
    run = answer.run(_flat, ranks, start, own, kind, options, **more)
    parameters = [nn.Parameter(p.clone()) for p in start]
    optimizer = getattr(torch.optim, kind)(parameters, **options)
    for step in gradients:
        for i, p in enumerate(parameters):
            p.grad = torch.stack([of_rank[i] for of_rank in step]).mean(0)
        optimizer.step()
    return run, [p.detach() for p in parameters]


@FLAT.check("every rank has one process's parameters", points=3, needs=("check_flat_states",))
def check_flat_parameters(answer: Answer) -> None:
    """Two optimizers, 1 to 4 ranks; each rank has gradients of its own samples."""
    for ranks, kind, options in (
        (2, "SGD", {"lr": 0.1, "momentum": 0.9}),
        (3, "AdamW", {"lr": 0.01}),
        (4, "SGD", {"lr": 0.1, "momentum": 0.9}),
        (1, "AdamW", {"lr": 0.01}),
    ):
        run, right = _train(answer, ranks, kind, options)
        for rank in range(ranks):
            for i, (got, expected) in enumerate(zip(run[rank][0], right, strict=True)):
                require_close(
                    got,
                    expected,
                    f"{kind} on {plural(ranks, 'rank')}: after {STEPS} steps parameter {i} on rank {rank} is not "
                    "what one process has that steps with the mean gradient: it",
                    hint="Is it the mean, does each rank update its own run of the flat vector, and do all get the "
                    "new values?",
                    split=True,
                )


@FLAT.check("states of an equal part", points=3)
def check_flat_states(answer: Answer) -> None:
    """Adam keeps two float32 numbers for each element of the part, padding included."""
    for ranks in (2, 3, 4):
        run, _ = _train(answer, ranks, "Adam", {"lr": 0.01})
        part = -(-N // ranks)
        for rank in range(ranks):
            require(
                run[rank][1] == 8 * part,
                f"{N} elements on {plural(ranks, 'rank')} are parts of {part}, which is {8 * part} bytes of Adam "
                f"states. The optimizer of rank {rank} holds {run[rank][1]}. Of what does it know: whole "
                "parameters, or one run of the flat vector, with its padding?",
            )


@FLAT.check(
    "2 (p - 1) parts per rank and step",
    points=2,
    needs=("check_flat_parameters", "check_flat_states"),
)
def check_flat_traffic(answer: Answer) -> None:
    """One pass round the ring for gradients, one for parameters."""
    for ranks in (2, 3):
        run, _ = _train(answer, ranks, "SGD", {"lr": 0.1}, backend="ring", record=True)
        exact = STEPS * 2 * (ranks - 1) * 4 * -(-N // ranks)
        for rank in range(ranks):
            sent = run.traffic.bytes_sent(rank=rank)
            require(
                sent == exact,
                f"In {STEPS} steps rank {rank} of {ranks} sends {sent:,} bytes; {exact:,} are enough. Which "
                "collective leaves each rank with its part of a sum and nothing else, and which one gives every "
                "part to all?",
            )
