"""PowerSGD of a whole model: all matrices and vectors of a step in two messages, with residuals and warm starts."""

from __future__ import annotations

from itertools import product
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
from dtcourse.plural import plural

MEANS = Exercise(
    "low_rank_means",
    lesson="12b",
    title="PowerSGD of a model, in two messages",
    takes=("low_rank_means",),
    target="equal to one process to 1e-9 at 2, 3 and 4 ranks; two all-reduces per step, of no more numbers than needed",
    forbidden=("dtcourse.compression", "torch.distributed.algorithms"),
)

RANK, STEPS = 2, 3
SHAPES = ((24, 10), (24,), (7, 16), (16,), (12, 12))
MATRICES = tuple(shape for shape in SHAPES if len(shape) == 2)
WAITS = (
    "What has this rank wanted to send, and what of it is in the mean that arrived? "
    "The rest waits for the next step."
)
# The numbers of a step's messages: P and Q of each matrix, and each vector once.
NUMBERS = sum(RANK * sum(shape) for shape in MATRICES) + sum(s[0] for s in SHAPES if len(s) == 1)


Drawn = tuple[list[list[list[Tensor]]], list[Tensor | None]]


def drawn(ranks: int) -> Drawn:
    """By step and rank a gradient for each shape; and the first Qs, None for a vector."""
    gradients = [
        [[torch.randn(s, dtype=torch.double) for s in SHAPES] for _ in range(ranks)]
        for _ in range(STEPS)
    ]
    qs = [torch.randn(s[1], RANK, dtype=torch.double) if len(s) == 2 else None for s in SHAPES]
    return gradients, qs


def alone(given: Drawn, *, keeps: bool = True, warm: bool = True) -> tuple[list[Any], list[Any]]:
    """One process. By step: the means; and each rank's residuals. keeps, warm: without residuals, warm starts."""
    gradients, first = given
    ranks, qs, means, residuals = len(gradients[0]), list(first), list[Any](), list[Any]()
    left = [[torch.zeros(s, dtype=torch.double) for s in SHAPES] for _ in range(ranks)]
    for each in gradients:
        mean, new = [], []
        for i, q in enumerate(qs):
            rows = [g[i] + r[i] for g, r in zip(each, left, strict=True)]
            middle = torch.stack(rows).mean(0)
            if q is not None:
                p = torch.linalg.qr(middle @ q).Q
                new.append(middle.T @ p)
                middle = p @ new[-1].T
            else:
                new.append(None)
            mean.append(middle)
            for row, r in zip(rows, left, strict=True):
                r[i] = row - middle if q is not None and keeps else torch.zeros_like(row)
        qs = new if warm else list(first)
        means.append(mean)
        residuals.append([[t.clone() for t in r] for r in left])
    return means, residuals


def _steps(low_rank_means: Any, mine: list[list[Tensor]], qs: list[Any]) -> Any:
    """On a rank: what its answer returns, step by step, each time given what it returned before."""
    residuals, found = [torch.zeros_like(g) for g in mine[0]], []
    for each in mine:
        means, qs, residuals = low_rank_means([g.clone() for g in each], list(qs), list(residuals))
        found.append((means, residuals))
    return found


def _require_tensors(got: Any, right: list[Tensor], where: str, hint: str) -> None:
    listed = isinstance(got, (list, tuple)) and len(got) == len(right)
    require(listed, f"{where}: a list of {plural(len(right), 'tensor')} is expected.")
    for one, expected, shape in zip(got, right, SHAPES, strict=True):
        require_close(one, expected, f"{where}, of {' x '.join(map(str, shape))}", 1e-9, hint)


def _run(answer: Answer, ranks: int, steps: int) -> tuple[Any, Drawn]:
    gradients, qs = given = drawn(ranks)
    mine = Each(list(zip(*gradients[:steps], strict=True)))
    return answer.run(_steps, ranks, mine, qs, backend="ring", record=True), given


@MEANS.check("one step's means", points=3)
def check_one(answer: Answer) -> None:
    """Nothing has been left out before: vectors are exact, matrices of rank 2."""
    for ranks in (2, 3, 4):
        run, given = _run(answer, ranks, 1)
        means, _ = alone(given)
        for rank in range(ranks):
            hint = "Is P orthonormal, and the same on all ranks? Is each sum divided by the ranks, once?"
            where = f"With {plural(ranks, 'rank')}, the mean on rank {rank}"
            _require_tensors(run[rank][0][0], means[0], where, hint)


@MEANS.check("residuals and warm starts, over three steps", points=4, needs=("check_one",))
def check_three(answer: Answer) -> None:
    """What is left out of a matrix is added to its next gradient, and the next step begins with the last Q."""
    for ranks in (2, 3, 4):
        run, given = _run(answer, ranks, STEPS)
        means, residuals = alone(given)
        others = {
            "That is what comes without residuals: when does what was left out travel?": alone(
                given, keeps=False
            )[0],
            "That is what comes if each step begins with the first Q: which one is the last?": alone(
                given, warm=False
            )[0],
        }
        for rank, step in product(range(ranks), range(STEPS)):
            got = run[rank][step][0]
            hint = next((said for said, one in others.items() if _same(got, one[step])), WAITS)
            where = f"With {plural(ranks, 'rank')}, rank {rank}, step {step}: the mean"
            _require_tensors(got, means[step], where, hint)
        for rank, step in product(range(ranks), range(STEPS)):
            where = f"With {plural(ranks, 'rank')}, rank {rank}, step {step}: the residual"
            _require_tensors(run[rank][step][1], residuals[step][rank], where, WAITS)


def _same(got: Any, other: list[Tensor]) -> bool:
    pairs = zip(got, other, strict=False) if isinstance(got, (list, tuple)) else ()
    found = [
        isinstance(a, Tensor) and a.shape == b.shape and torch.allclose(a, b) for a, b in pairs
    ]
    return len(found) == len(other) and all(found)


@MEANS.check("two messages per step", points=3, needs=("check_one",))
def check_messages(answer: Answer) -> None:
    """Counted: collectives that a rank calls, and bytes that all ranks send."""
    for ranks in (2, 4):
        run, _ = _run(answer, ranks, STEPS)
        calls = run.traffic.calls(rank=0) / STEPS
        require(
            calls <= 2,
            f"With {plural(ranks, 'rank')}, a step calls {calls:g} collectives, and 2 are enough. What can travel "
            "together before P is made orthonormal, and what only after it?",
        )
        sent = sum(run.traffic.bytes_sent(rank=rank) for rank in range(ranks)) / STEPS
        most = 2 * (ranks - 1) * 8 * NUMBERS
        require(
            sent <= most,
            f"With {plural(ranks, 'rank')}, a step sends {sent:,.0f} bytes over all ranks, and {most:,} are enough: "
            f"those of {NUMBERS} numbers by a ring. What travels besides P, Q and the vectors, or twice?",
        )
        for rank in range(ranks):
            where = f"With {plural(ranks, 'rank')}, rank {rank}"
            require_received(where, run.traffic.bytes_received(rank), STEPS * 8 * NUMBERS)
