"""Where to cut a chain of unequal layers."""

from __future__ import annotations

import math
import random
from typing import Any

from dtcourse.course.judging import Answer, Exercise, require

CUTS = Exercise(
    "cut_a_chain",
    lesson="15",
    title="Where to cut a chain of unequal layers",
    takes=("best_cuts",),
    target="the least peak in 60 random chains of up to 24 layers",
    forbidden=(
        "dtcourse.memory",
        "dtcourse.simulator",
    ),
)


def _cuts(best_cuts: Any, chains: list[tuple[list[int], list[int]]]) -> list[Any]:
    return [[int(s) for s in best_cuts(list(kept), list(inputs))] for kept, inputs in chains]


def _peak(kept: list[int], inputs: list[int], starts: list[int]) -> int:
    ends = [*starts[1:], len(kept)]
    return sum(inputs[s] for s in starts) + max(
        sum(kept[a:b]) for a, b in zip(starts, ends, strict=True)
    )


def _least(kept: list[int], inputs: list[int]) -> int:
    """For every size that the largest segment may have: the cheapest inputs. The best of these."""
    n = len(kept)
    sums = [0]
    for size in kept:
        sums.append(sums[-1] + size)
    best = math.inf
    for limit in sorted({sums[b] - sums[a] for a in range(n) for b in range(a + 1, n + 1)}):
        cost = [0.0] + [math.inf] * n
        for end in range(1, n + 1):
            cost[end] = min(
                (cost[a] + inputs[a] for a in range(end) if sums[end] - sums[a] <= limit),
                default=math.inf,
            )
        best = min(best, cost[n] + limit)
    return int(best)


def _random_chain(n: int) -> tuple[list[int], list[int]]:
    kept = [random.choice([1, 2, 4, 8, 16, 32]) * random.randint(1, 9) for _ in range(n)]
    return kept, [random.choice([1, 1, 2, 5, 10, 40]) * random.randint(1, 4) for _ in range(n)]


@CUTS.check(
    "starts that can be: the first is 0, rising, inside the chain", points=1, needs=("check_equal",)
)
def check_starts(answer: Answer) -> None:
    """Also for one layer."""
    chains = [_random_chain(n) for n in (1, 2, 7)]
    for (kept, _), starts in zip(chains, answer.call(_cuts, chains), strict=True):
        require(
            starts[:1] == [0] and starts == sorted(set(starts)) and starts[-1] < len(kept),
            f"For {len(kept)} layers it returns {starts}. It should be the first layer of each segment: 0 first, "
            "then rising.",
        )


@CUTS.check("equal layers: the square-root rule", points=2)
def check_equal(answer: Answer) -> None:
    """4, 9, 16 and 36 equal layers, each of whose inputs is as large as what it keeps."""
    chains = [([5] * n, [5] * n) for n in (4, 9, 16, 36)]
    for (kept, inputs), starts in zip(chains, answer.call(_cuts, chains), strict=True):
        n = len(kept)
        require(starts[:1] == [0], f"{starts}: the first segment starts with layer 0.")
        got, least = _peak(kept, inputs, starts), _least(kept, inputs)
        require(
            got == least,
            f"{n} equal layers in {len(starts)} segments: {got // 5} layers' bytes at the peak, and {least // 5} "
            f"would do. What is the square root of {n}?",
        )


@CUTS.check("unequal layers: the least peak there is", points=4)
def check_unequal(answer: Answer) -> None:
    """60 random chains."""
    chains = [_random_chain(random.randint(3, 24)) for _ in range(60)]
    for (kept, inputs), starts in zip(chains, answer.call(_cuts, chains), strict=True):
        require(starts[:1] == [0], f"{starts}: the first segment starts with layer 0.")
        got, least = _peak(kept, inputs, starts), _least(kept, inputs)
        require(
            got == least,
            f"Layers that keep {kept} with inputs of {inputs}: cut at {starts} the peak is {got}, and {least} can "
            "be had. If you knew how large the largest segment may be, how would you choose the cuts with the "
            "cheapest inputs?",
        )
