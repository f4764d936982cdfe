"""Errors of predictions: their median and 90th percentile with bootstrap intervals, and whether they rank right."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from itertools import combinations
from typing import Any

DIFFERS = 1.05  # pairs of measurements that are closer say nothing


def ninety(errors: Sequence[float]) -> float:
    """Their 90th percentile."""
    return sorted(errors)[min(len(errors) - 1, int(0.9 * len(errors)))]


def summary(errors: Sequence[float], groups: Sequence[Any]) -> dict[str, float]:
    """Median and 90th percentile, each with its bootstrap interval (95 %).

    groups: of each error, what makes it like others (a size of model): groups are drawn, and not errors
    """
    by: dict[Any, list[float]] = {}
    for group, each in zip(groups, errors, strict=True):
        by.setdefault(group, []).append(each)
    draw, names = random.Random(0), list(by)
    draws = [[e for n in draw.choices(names, k=len(names)) for e in by[n]] for _ in range(1000)]
    found = {}
    for name, of in (("median", statistics.median), ("p90", ninety)):
        many = sorted(of(each) for each in draws)
        found |= {name: of(errors), f"{name} low": many[25], f"{name} high": many[975]}
    return {name: round(value, 4) for name, value in found.items()}


def tau(measured: Sequence[float], predicted: Sequence[float]) -> dict[str, float]:
    """Kendall's, over pairs whose measured values differ by 5 % or more, and how many these are."""
    agree = total = 0
    for (a, x), (b, y) in combinations(zip(measured, predicted, strict=True), 2):
        if max(a, b) / min(a, b) >= DIFFERS:
            total += 1
            agree += 0 if x == y else 1 if (a - b) * (x - y) > 0 else -1
    return {"tau": round(agree / total, 3), "pairs": total}
