"""The rank of each matrix's approximation, for the least error in a budget of numbers."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, call_each, require
from dtcourse.plural import plural

CHOOSE = Exercise(
    "choose_low_ranks",
    lesson="12b",
    title="Choose the ranks",
    takes=("choose_low_ranks",),
    target="an error of at most 1.02 times the least possible, for 9 models",
)

Model = tuple[list[Tensor], list[tuple[int, int]], int]
# Shapes, decays of the singular values, scales, budgets.
EQUAL = (((32, 32),) * 4, (0.5, 0.8, 0.9, 0.97), (3.0, 1.0, 2.0, 0.5), (128, 640, 1600))
UNEQUAL = (
    ((128, 16), (64, 64), (10, 64), (24, 96)), (0.9, 0.85, 0.7, 0.95), (1.0, 2.0, 3.0, 0.7), (296, 900, 2500)
)  # fmt: skip
SMALL = (
    ((8, 8), (12, 6), (40, 40), (8, 24)),
    (0.98, 0.95, 0.9, 0.9),
    (2.0, 3.0, 1.0, 1.0),
    (104, 240, 700),
)


@cache
def models(name: str) -> list[Model]:
    """Three models, always the same ones: singular values, shapes, budget."""
    shapes, decays, scales, budgets = {"EQUAL": EQUAL, "UNEQUAL": UNEQUAL, "SMALL": SMALL}[name]
    make, values = torch.Generator().manual_seed(len(name)), []
    for shape, decay, scale in zip(shapes, decays, scales, strict=True):
        powers = decay ** torch.arange(min(shape), dtype=torch.double)
        noise = 1 + 0.1 * torch.rand(min(shape), generator=make, dtype=torch.double)
        values.append((scale * powers * noise).sort(descending=True).values)
    return [(values, list(shapes), budget) for budget in budgets]


def option(values: Tensor, shape: tuple[int, int], rank: int, power: int = 2) -> tuple[int, float]:
    """Numbers that travel, and the squared error. power: 1 adds the singular values up as they are, a mistake."""
    n, m = shape
    if rank * (n + m) >= n * m:
        return n * m, 0.0
    return rank * (n + m), float(values[rank:].pow(power).sum())


def least(model: Model, power: int = 2) -> float:
    """The least error in the budget: the errors that so many numbers can come to, matrix by matrix."""
    values, shapes, budget = model
    best = [0.0] * (budget + 1)
    for s, shape in zip(values, shapes, strict=True):
        options = {option(s, shape, rank, power) for rank in range(len(s) + 1)}
        best = [
            min(error + best[room - cost] for cost, error in options if cost <= room)
            for room in range(budget + 1)
        ]
    return best[budget]


def _require(answer: Answer, name: str, hint: str) -> None:
    tried = models(name)
    for model, got in zip(tried, call_each(answer, tried), strict=True):
        values, shapes, budget = model
        where = f"{' and '.join(f'{n} x {m}' for n, m in shapes)} in {budget:,} numbers"
        right = isinstance(got, (list, tuple)) and len(got) == len(shapes)
        right = right and all(
            type(r) is int and 0 <= r <= min(s) for r, s in zip(got, shapes, strict=True)
        )
        require(
            right,
            f"{where}: an answer is a rank for each matrix, whole numbers from 0 to the smaller side; got {got!r}.",
        )
        chosen = [option(*one) for one in zip(values, shapes, got, strict=True)]
        sent, error = sum(cost for cost, _ in chosen), sum(error for _, error in chosen)
        require(
            sent <= budget,
            f"{where}: the ranks {list(got)} send {plural(sent, 'number')}. What does a rank cost, for each shape?",
        )
        possible = least(model)
        if error > 1.02 * possible:
            unsquared = sum(option(*one, 1)[1] for one in zip(values, shapes, got, strict=True))
            if unsquared <= 1.0001 * least(model, 1):
                hint = (
                    "Of the singular values themselves they leave out the least. "
                    "Of what does the exercise count the sum?"
                )
        require(
            error <= 1.02 * possible,
            f"{where}: the ranks {list(got)} leave out {error:.4g}, squared, and {possible:.4g} is possible. {hint}",
        )


@CHOOSE.check("matrices of one shape", points=2)
def check_equal(answer: Answer) -> None:
    """Where a rank costs the same everywhere."""
    _require(
        answer,
        "EQUAL",
        "What does one rank more gain in each matrix, squared, and from which rank on does a matrix leave nothing out?",
    )


@CHOOSE.check("matrices of many shapes", points=3)
def check_unequal(answer: Answer) -> None:
    """Where a gain has to be held against its cost."""
    _require(
        answer,
        "UNEQUAL",
        "What does one rank more gain per number that it sends, and "
        "what is done with the room that is left at the end?",
    )


@CHOOSE.check("small matrices", points=3)
def check_small(answer: Answer) -> None:
    """Which may travel whole."""
    _require(
        answer,
        "SMALL",
        "From which rank on does a matrix travel whole, and leave nothing out? Have you compared all combinations?",
    )
