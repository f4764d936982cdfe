"""ZeRO-1: an optimizer that is shared out."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn

from dtcourse.course.judging import Answer, Exercise, require, require_close
from dtcourse.plural import plural

ZERO_1 = Exercise(
    "zero_1",
    lesson="16",
    title="ZeRO-1: an optimizer that is shared out",
    takes=("zero_1",),
    target="one process's parameters to 1e-6; Adam states of 8 bytes an owned element; (p - 1) N elements sent a step",
    forbidden=(
        "torch.distributed.optim",
        "dtcourse.parameters",
        "dtcourse.sharding",
    ),
)

SHAPES = [(7, 6), (7,), (5, 7), (5,), (3, 5)]
N = sum(torch.Size(s).numel() for s in SHAPES)


def _zero_1(
    zero_1: Any, start: list[torch.Tensor], gradients: list[list[torch.Tensor]], owners: list[int],
    kind: str, options: dict[str, float],
) -> tuple[list[torch.Tensor], int]:  # fmt: skip
    """Parameters after some steps, and bytes of the optimizer's states of more than one number."""
    parameters = [nn.Parameter(p.clone()) for p in start]
    optimizer = zero_1(
        dict(zip(parameters, owners, strict=True)), getattr(torch.optim, kind), **options
    )
    for step in gradients:
        for p, g in zip(parameters, step, strict=True):
            p.grad = g.clone()
        optimizer.step()
    values = [v for state in optimizer.state.values() for v in state.values()]
    held = sum(v.nbytes for v in values if isinstance(v, torch.Tensor) and v.numel() > 1)
    return [p.detach() for p in parameters], held


def _owners(ranks: int) -> list[int]:
    """Each rank owns something where there is enough, in no particular order."""
    owners = [i % ranks for i in range(len(SHAPES))]
    random.shuffle(owners)
    return owners


def _train(
    answer: Answer, ranks: int, kind: str, options: dict[str, float], owners: list[int], **more: Any
) -> tuple[Any, list[torch.Tensor]]:
    start = [torch.randn(s) for s in SHAPES]
    gradients = [[torch.randn(s) for s in SHAPES] for _ in range(3)]
    run = answer.run(_zero_1, ranks, start, gradients, owners, kind, options, **more)
    parameters = [nn.Parameter(p.clone()) for p in start]
    optimizer = getattr(torch.optim, kind)(parameters, **options)
    for step in gradients:
        for p, g in zip(parameters, step, strict=True):
            p.grad = g.clone()
        optimizer.step()
    return run, [p.detach() for p in parameters]


@ZERO_1.check("every rank has one process's parameters", points=3, needs=("check_zero_1_states",))
def check_zero_1_parameters(answer: Answer) -> None:
    """Two optimizers, 1 to 4 ranks, owners at random."""
    for ranks, kind, options in (
        (2, "SGD", {"lr": 0.1, "momentum": 0.9}),
        (3, "AdamW", {"lr": 0.01}),
        (4, "SGD", {"lr": 0.1}),
        (1, "AdamW", {"lr": 0.01}),
    ):
        owners = _owners(ranks)
        run, right = _train(answer, ranks, kind, options, owners)
        for rank in range(ranks):
            for i, (got, expected) in enumerate(zip(run[rank][0], right, strict=True)):
                require_close(
                    got,
                    expected,
                    f"{kind} on {plural(ranks, 'rank')}: after 3 steps parameter {i}, which rank {owners[i]} owns, is not what one process "
                    f"has: on rank {rank} it",
                    hint=f"Who updates it, and from whom does rank {rank} get the new value?",
                )


@ZERO_1.check("states of the owned elements only, also where there are none", points=3)
def check_zero_1_states(answer: Answer) -> None:
    """Adam keeps two float32 numbers for each element."""
    for ranks, owners in ((2, _owners(2)), (3, [0, 2, 2, 0, 2])):
        run, _ = _train(answer, ranks, "Adam", {"lr": 0.01}, owners)
        for rank in range(ranks):
            own = sum(
                torch.Size(s).numel() for s, o in zip(SHAPES, owners, strict=True) if o == rank
            )
            require(
                run[rank][1] == 8 * own,
                f"Rank {rank} of {ranks} owns {own} of {N} elements, which is {8 * own} bytes of Adam states, and its optimizer "
                f"holds {run[rank][1]}. Which parameters does the optimizer know of?",
            )


@ZERO_1.check(
    "(p - 1) N elements a step, all ranks together",
    points=2,
    needs=("check_zero_1_parameters", "check_zero_1_states"),
)
def check_zero_1_traffic(answer: Answer) -> None:
    """Counted message by message."""
    for ranks in (2, 3):
        run, _ = _train(
            answer, ranks, "SGD", {"lr": 0.1}, _owners(ranks), backend="ring", record=True
        )
        sent = sum(run.traffic.bytes_sent(rank=rank) for rank in range(ranks))
        least = 3 * 4 * (ranks - 1) * N
        require(
            sent <= least,
            f"In 3 steps {plural(ranks, 'rank')} send {sent:,} bytes; {least:,} are enough. Each new value has to reach {ranks - 1} ranks, "
            "once. Does something travel that the receiver has, or does not need?",
        )
