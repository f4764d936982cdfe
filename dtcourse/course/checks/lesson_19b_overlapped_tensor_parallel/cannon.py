"""Cannon's algorithm: y = x W on a square grid, by blocks that shift to neighbours; with the gradients of both."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import (
    Answer,
    Each,
    Exercise,
    require,
    require_close,
    require_received,
)

CANNON = Exercise(
    "cannon",
    lesson="19b",
    title="Cannon's algorithm",
    takes=("cannon",),
    target="output and gradients of one process to 1e-9 on 1, 4 and 9 ranks; forward, each rank sends at most q of its "
    "blocks of x and as many of W, to neighbours or in the first step; no collective",
    forbidden=(
        "dtcourse.tensor_parallel",
        "dtcourse.sequence_parallel",
        "dtcourse.collectives",
        "torch.distributed.tensor",
        "torch.distributed.nn",
        "torch.distributed._functional_collectives",
        "torch.distributed.all_gather",
        "torch.distributed.all_reduce",
        "torch.distributed.broadcast",
        "torch.distributed.reduce",
    ),
)

ROWS, IN, OUT = 6, 12, 18  # 1, 2 and 3 divide all of them
FIND = "Which block of x and which of W meet on rank (i, j) in step s, if each has moved by one rank since the last?"


def _cut(m: Tensor, q: int, rank: int) -> Tensor:
    """The block of a rank of a q x q grid, which holds its rows of ranks one after the other."""
    return m.chunk(q, 0)[rank // q].chunk(q, 1)[rank % q].clone()


def _step(cannon: Any, q: int, x: Tensor, w: Tensor, dy: Tensor, backward: bool) -> list[Any]:
    """On a rank, which is given its blocks: that of y, and the gradients of those of x and of W."""
    mine, weight = x.requires_grad_(), w.requires_grad_()
    y = cannon(mine, weight, q)
    kept = y.detach().clone()
    if not backward:
        return [kept, None, None]
    if y.requires_grad:
        y.backward(dy)
    return [kept, mine.grad, weight.grad]


def _given() -> tuple[Tensor, Tensor, Tensor]:
    shapes = (ROWS, IN), (IN, OUT), (ROWS, OUT)
    x, w, dy = (torch.randn(shape, dtype=torch.double) for shape in shapes)
    return x, w, dy


def _run(answer: Answer, q: int, given: tuple[Tensor, Tensor, Tensor], backward: bool) -> Any:
    return answer.run(_step, q * q, q, *_blocks(q, *given), backward)


def _blocks(q: int, *given: Tensor) -> list[Each]:
    return [Each([_cut(m, q, rank) for rank in range(q * q)]) for m in given]


@CANNON.check("the output of one process, block by block", points=3)
def check_output(answer: Answer) -> None:
    """In double precision, on 4 and 9 ranks."""
    for q in (2, 3):
        x, w, dy = _given()
        run = _run(answer, q, (x, w, dy), False)
        for rank in range(q * q):
            got, right = run[rank][0], _cut(x @ w, q, rank)
            require(
                isinstance(got, Tensor) and got.shape == right.shape,
                f"{q * q} ranks: the block of y on rank {rank} has shape {tuple(right.shape)}, and yours "
                f"{tuple(getattr(got, 'shape', ()))}.",
            )
            require_close(got, right, f"{q * q} ranks: y on rank {rank}", 1e-9, FIND)


@CANNON.check("the gradients of one process", points=4, needs=("check_output",))
def check_gradients(answer: Answer) -> None:
    """Of x and of W, on 1, 4 and 9 ranks."""
    for q in (1, 2, 3):
        x, w, dy = _given()  # others each time: one rank alone has all of them
        run = _run(answer, q, (x, w, dy), True)
        for rank in range(q * q):
            for name, got, whole in (("x", run[rank][1], dy @ w.T), ("W", run[rank][2], x.T @ dy)):
                where = f"{q * q} ranks: the gradient of {name} on rank {rank}"
                require(
                    got is not None,
                    f"{where} is missing. A message ends the way that autograd knows: what is its backward?",
                )
                require_close(
                    got,
                    _cut(whole, q, rank),
                    where,
                    1e-9,
                    "A block has been on q ranks, and each used it. Where is the gradient of what a rank received to "
                    "go, and is that the rank that has the block in the end?",
                )


@CANNON.check("at most q blocks of each from each rank", points=3, needs=("check_output",))
def check_traffic(answer: Answer) -> None:
    """Forward."""
    for q in (2, 3):
        x, w, dy = _given()
        run = answer.run(_step, q * q, q, *_blocks(q, x, w, dy), False, backend="ring", record=True)
        limit = q * (x.nbytes + w.nbytes) // (q * q)
        for rank in range(q * q):
            sent = run.traffic.bytes_sent(rank=rank)
            require(
                sent <= limit,
                f"{q * q} ranks: rank {rank} sends {sent:,} bytes forward, and {q} blocks of each are {limit:,}. "
                "How often does each block move, once all are where they meet first? And after the last product?",
            )
            least = (q - 1) * (x.nbytes + w.nbytes) // (q * q)  # its row of x, its column of W
            require_received(f"{q * q} ranks: rank {rank}", run.traffic.bytes_received(rank), least)
