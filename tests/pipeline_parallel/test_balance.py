"""Balancing against every way there is."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from dtcourse.pipeline_parallel.balance import balance


def every_way(layers: int, stages: int):
    for cuts in combinations(range(1, layers), stages - 1):
        yield [range(a, b) for a, b in zip([0, *cuts], [*cuts, layers], strict=True)]


def loads(ways, costs, speeds) -> list[float]:
    return [sum(costs[i] for i in one) / speed for one, speed in zip(ways, speeds, strict=True)]


@pytest.mark.parametrize("links", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_no_other_way_is_better(seed, links):
    dice = random.Random(seed)
    layers = dice.randint(1, 9)
    stages = dice.randint(1, layers)
    costs = [dice.choice((0, 1, 2, 3, 7, 20)) for _ in range(layers)]
    speeds = [dice.choice((1, 1, 2, 0.5)) for _ in range(stages)]
    transfers = [dice.choice((0, 1, 5, 30)) for _ in costs] if links else None

    def slowest(way) -> float:
        ends = [one.stop for one in way[:-1]]
        return max(*loads(way, costs, speeds), *[transfers[end - 1] for end in ends if links], 0)

    found = balance(costs, stages, speeds, transfers)
    ways = list(every_way(layers, stages))
    best = min(map(slowest, ways))
    assert slowest(found) == pytest.approx(best)
    squares = [
        sum(x * x for x in loads(way, costs, speeds))
        for way in ways
        if slowest(way) <= best * (1 + 1e-9)
    ]
    assert sum(x * x for x in loads(found, costs, speeds)) == pytest.approx(min(squares))


def test_a_slow_link_moves_the_cut_to_where_less_is_sent():
    assert [len(one) for one in balance([1, 1, 1, 1], 2)] == [2, 2]
    assert [len(one) for one in balance([1, 1, 1, 1], 2, transfers=[1, 9, 1, 0])] == [1, 3]


def test_a_transformer_with_a_heavy_end():
    costs = [0.1, *[1] * 8, 3]  # embedding, blocks, the projection to the vocabulary
    assert [len(one) for one in balance(costs, 4)] == [3, 3, 3, 1]
    assert [len(one) for one in balance(costs, 4, speeds=[1, 1, 1, 3])] == [2, 2, 2, 4]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (([1, 2], 3), "2 layers cannot make 3 stages"),
        (([1, 2], 0), "2 layers cannot make 0 stages"),
        (([1, -2], 1), "0 or more; got -2"),
        (([1, 2], 2, [1]), "2 stages need as many speeds above 0"),
        (([1, 2], 2, [1, 0]), "2 stages need as many speeds above 0"),
        (([1, 2], 2, None, [1]), "2 layers need as many transfers"),
        (([1, 2], 2, None, [1, -1]), r"of 0 or more; got \[1, -1\]"),
    ],
)
def test_what_makes_no_sense_is_said(arguments, says):
    with pytest.raises(ValueError, match=says):
        balance(*arguments)
