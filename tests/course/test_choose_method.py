"""The best choices of exercise 28-4, by running every one of many federations: each method is right somewhere, no
number of steps is right everywhere, and the other method is slower by more than the target allows.
"""

from __future__ import annotations

import math
import random

import pytest

from dtcourse.course.checks.lesson_28_federated import choose_method as exercise


@pytest.mark.parametrize("alike", [True, False])
def test_each_kind_of_clients_has_its_method(alike):
    random.seed(0)
    steps = set()
    for _ in range(8):
        near = []
        for job in exercise.drawn(alike):
            found = {choice: seconds for choice, (seconds,) in exercise.case(job).search().items()}
            best = min(found, key=found.get)
            assert best[0] == ("FedAvg" if alike else "SCAFFOLD")
            other = min(t for (method, _), t in found.items() if method != best[0])
            assert other > exercise.NEAR * found[best]
            near.append({c for c, t in found.items() if t <= exercise.NEAR * found[best]})
            steps.add(best[1])
        # no one choice is near the best of all three, and few are near the best of one
        assert not set.intersection(*near)
        assert max(map(len, near)) <= 3
    assert len(steps) >= 2


def test_closed_forms_are_the_steps():
    """K steps of each client, one after the other, and the variates of the paper."""
    import torch

    a, m = exercise.losses_of(3, 0.6, 0.4)
    for method, K in (("FedAvg", 4), ("SCAFFOLD", 16)):
        x, own = torch.zeros(3, dtype=torch.double), torch.zeros_like(a)
        best = (a * m).sum(0) / a.sum(0)
        first, rounds = (a.mean(0) * best.square()).sum(), 0
        while (a.mean(0) * (x - best).square()).sum() > exercise.PART * first and rounds < 2000:
            c, y = own.mean(0), x.repeat(len(a), 1)
            for _ in range(K):
                y = y - exercise.LR * (a * (y - m) + (c - own if method == "SCAFFOLD" else 0.0))
            own = own - c + (x - y) / (K * exercise.LR)
            x, rounds = y.mean(0), rounds + 1
        found = exercise.rounds_to(method, K, a, m)
        assert math.isfinite(found) and abs(found - rounds) <= 1
