"""A cache for shuffled epochs."""

from __future__ import annotations

import random
from typing import Any

import torch

from dtcourse.course.judging import Answer, Exercise, require

CACHE = Exercise(
    "epoch_cache",
    lesson="07",
    title="A cache for shuffled epochs",
    takes=("EpochCache",),
    target="from epoch 2 on at least 95% of the capacity in hits, and never more than the capacity can give",
    forbidden=("dtcourse.data",),
)


def _epochs(
    epoch_cache: Any, capacity: int, orders: list[list[int]], values: list[float]
) -> dict[str, Any]:
    """Hits in each epoch, and how many of what came back was not the sample that was asked for."""
    cache = epoch_cache(capacity)
    hits, wrong = [], 0
    for order in orders:
        made: list[int] = []

        def make(index: int, made: list[int] = made) -> torch.Tensor:
            made.append(index)
            return torch.tensor(values[index])

        for index in order:
            wrong += cache.get(index, make).item() != torch.tensor(values[index]).item()
        hits.append(len(order) - len(made))
    return {"hits": hits, "wrong": int(wrong)}


def _read(answer: Answer, n: int, capacity: int, epochs: int = 4) -> list[int]:
    orders = [random.sample(range(n), n) for _ in range(epochs)]
    values = [random.random() for _ in range(n)]
    result = answer.call(_epochs, capacity, orders, values)
    require(
        result["wrong"] == 0,
        f"{result['wrong']} of {n * epochs} times another sample came back than the one that was asked for. "
        "Under which key is a sample kept?",
    )
    hits = result["hits"]
    require(
        max(hits) <= capacity,
        f"{max(hits)} hits in one epoch of {n} samples: a cache of {capacity} samples cannot have more than {capacity}, since each "
        "sample comes once an epoch. How many do you keep?",
    )
    return hits


@CACHE.check("the right samples, and never more of them than fit", points=2, needs=("check_hits",))
def check_capacity(answer: Answer) -> None:
    """Also for a cache of nothing."""
    for n, capacity in ((200, 20), (50, 0), (30, 30)):
        _read(answer, n, capacity)


@CACHE.check("at least 95% of the capacity in hits, in each epoch after the first", points=3)
def check_hits(answer: Answer) -> None:
    """A quarter, half and nine tenths of the data fit."""
    for capacity in (100, 200, 360):
        hits = _read(answer, 400, capacity)
        require(
            min(hits[1:]) >= 0.95 * capacity,
            f"{capacity} of 400 samples fit, and one epoch had {min(hits[1:])} hits; {round(0.95 * capacity)} are asked for. When you throw "
            "out a sample for a new one, which of the two comes sooner in the next epoch?",
        )
