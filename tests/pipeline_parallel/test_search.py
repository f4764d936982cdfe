"""The search: within its memory, and never worse than the handcrafted schedules that fit."""

from __future__ import annotations

import random

import pytest

from dtcourse.pipeline_parallel.search import search
from dtcourse.pipeline_parallel.simulate import Memory, Times, simulate
from dtcourse.pipeline_parallel.validate import stored, validate
from dtcourse.pipeline_parallel.zero_bubble import zb_h1, zb_h2
from tests.turns import taking_turns


@pytest.mark.parametrize(
    "seed", [*range(4), *taking_turns(*range(4, 12), about="dtcourse/pipeline_parallel/")]
)
def test_never_worse_than_what_is_drawn_by_hand(seed):
    dice = random.Random(seed)
    p, m = dice.choice((2, 3, 4, 6)), dice.choice((2, 5, 8, 13, 30))
    times = Times(
        *(dice.uniform(0.5, 2) for _ in "FIW"),
        transfer=dice.choice((0.0, 0.1, 0.7)),
        sender_waits=dice.random() < 0.3,
    )
    for limit, drawn in ((p, zb_h1(p, m)), (2 * p - 1, zb_h2(p, m))):
        found = search(times, p, m, limit)
        validate(found, memory_limit=limit)
        assert simulate(found, times).cost <= simulate(drawn, times).cost * (1 + 1e-12)


@pytest.mark.parametrize("kept", [0.4, *taking_turns(0.47, about="dtcourse/pipeline_parallel/")])
def test_rounding_does_not_decide(kept):
    """A cost that is smaller by 2e-13 was taken for better, with a makespan longer by 2 to 6 %."""
    for times in (
        Times(18.5, 18.0, 9.3, transfer=0.6),
        Times(11.347, 11.248, 8.132, transfer=0.377),
    ):
        memory = Memory(stored=1, kept=kept)
        found = simulate(search(times, 8, 24, 8, memory), times, memory)
        drawn = simulate(zb_h1(8, 24), times, memory)
        assert found.cost == pytest.approx(drawn.cost, rel=1e-12)
        assert found.makespan <= drawn.makespan * (1 + 1e-9)


@pytest.mark.parametrize("limit", [1, 1.5, 2, 3, 5])
def test_the_limit_holds_whatever_it_is(limit):
    memory = Memory(stored=10, kept=6)
    found = search(Times(1, 1.2, 0.7, transfer=0.05), 4, 9, 10 * limit, memory)
    simulated = simulate(found, Times(), memory)
    assert max(simulated.peak_memory) <= 10 * limit
    assert found.memory_bound == stored(found)


def test_it_beats_them_where_their_assumptions_do_not_hold():
    """W half as long as F and I, as for short sequences: ZB-H2 leaves a bubble that is not needed."""
    times, memory = Times(18.5, 18.0, 9.3, transfer=0.6), Memory(stored=1, kept=0.4)
    found = simulate(search(times, 8, 32, 16, memory), times)
    drawn = simulate(zb_h2(8, 32), times)
    assert found.bubble_rate < 0.01 < 0.08 < drawn.bubble_rate


def test_unequal_ranks():
    times = Times([1, 1, 1.5, 1], [1, 1, 1.5, 1], [1, 1, 1.5, 1], transfer=0.1)
    found = simulate(search(times, 4, 12, 8), times)
    assert found.bubble_rate <= simulate(zb_h2(4, 12), times).bubble_rate
    assert found.bubble_rate < 0.1


def test_what_cannot_be_searched_is_said():
    with pytest.raises(ValueError, match=r"A limit of 0\.5 holds no forward, which stores 1"):
        search(Times(), 4, 8, 0.5)
    with pytest.raises(ValueError, match="1 stage or more; got 0"):
        search(Times(), 0, 8, 4)
