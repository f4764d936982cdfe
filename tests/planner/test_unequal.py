"""Layouts for unequal ranks: near the best that a search over all of them finds, and none that does not fit."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from dtcourse.pipeline_parallel import one_f_one_b
from dtcourse.pipeline_parallel.simulate import Times, simulate
from dtcourse.planner import unequal
from dtcourse.planner.unequal import choose
from dtcourse.planner.unequal_work import Plan, Work

INF = [math.inf] * 8


def work(layers=6, state=100.0, activation=1.0, output=0.0):
    return Work([1.0] * layers, [state] * layers, [activation] * layers, [output] * layers)


def cuts(layers, stages):
    for ends in itertools.combinations(range(1, layers), stages - 1):
        yield [range(a, b) for a, b in itertools.pairwise([0, *ends, layers])]


def shares(batch, copies, least):
    """All of a few copies, in steps of one sample."""
    if copies == 1:
        yield (batch,)
        return
    for mine in range(least, batch - least * (copies - 1) + 1):
        yield from ((mine, *rest) for rest in shares(batch - mine, copies - 1, least))


def seconds_of(work, seconds, memory, m, bandwidth, stages, ranges, given):
    """The docstring's formula written again, and infinite where a rank's memory does not hold its part."""
    pp, dp, whole = len(ranges), len(stages), sum(work.costs)
    took = 0.0
    for copy, share in zip(stages, given, strict=True):
        busy = []
        for s, chosen in enumerate(ranges):
            rank = copy[s]
            under_way = math.ceil(share / m) * min(m, pp - s)
            held = sum(work.states[i] + under_way * work.activations[i] for i in chosen)
            if held > memory[rank]:
                return math.inf
            each = sum(work.costs[i] for i in chosen) / whole * seconds[rank]
            if s < pp - 1:
                each += 2 * work.outputs[chosen[-1]] / bandwidth
            busy.append(each * share / m)
        took = max(took, sum(busy) + (m - 1) * max(busy))
    gradients = max(sum(work.gradients[i] for i in chosen) for chosen in ranges)
    return took + 2 * (dp - 1) / dp * gradients / bandwidth


def best_of_all(work, seconds, memory, batch, m, bandwidth):
    best = math.inf
    for used in range(1, len(seconds) + 1):
        for order in itertools.permutations(range(len(seconds)), used):
            for pp in (pp for pp in range(1, used + 1) if used % pp == 0 and pp <= len(work.costs)):
                stages = [order[i : i + pp] for i in range(0, used, pp)]
                for ranges in cuts(len(work.costs), pp):
                    for given in shares(batch, len(stages), m):
                        found = seconds_of(
                            work, seconds, memory, m, bandwidth, stages, ranges, given
                        )
                        best = min(best, found)
    return best


def drawn(rng):
    size, layers = rng.choice([2, 3]), rng.choice([3, 4])
    job = Work(
        [rng.choice([1.0, 2.0]) for _ in range(layers)],
        [rng.uniform(50, 150) for _ in range(layers)],
        [rng.uniform(1, 5) for _ in range(layers)],
        [rng.uniform(0, 20) for _ in range(layers)],
    )
    seconds = [rng.choice([1.0, 1.0, 3.0]) for _ in range(size)]
    memory = [rng.uniform(0.6, 1.6) * sum(job.states) for _ in range(size)]
    return job, seconds, memory, 12, rng.choice([1, 2, 4]), 100.0


@pytest.mark.parametrize("all_orders", [True, False], ids=["all orders", "few"])
def test_the_first_is_near_the_best_of_all_layouts(monkeypatch, all_orders):
    if not all_orders:
        monkeypatch.setattr(unequal, "ALL_ORDERS", 0)
    rng = random.Random(0)
    apart = []
    for _ in range(25):
        asked = job, seconds, memory, _, m, _ = drawn(rng)
        best = best_of_all(*asked)
        try:
            plans = choose(*asked)
        except ValueError:
            apart.append(math.inf if best < math.inf else 1.0)
            continue
        assert plans == sorted(plans, key=lambda plan: plan.seconds)
        for plan in plans:
            again = seconds_of(
                job, seconds, memory, m, 100.0, plan.stages, plan.ranges, plan.shares
            )
            assert plan.seconds == pytest.approx(again, rel=1e-12), "it is what it says, and fits"
            assert all(held <= memory[rank] for rank, held in plan.memory.items())
            assert sum(plan.shares) == 12
        apart.append(plans[0].seconds / best)
    assert min(apart) > 1 - 1e-9 and sorted(apart)[12] < 1.001
    assert max(apart) < 1.1


def test_uneven_stages_take_what_1f1b_takes_or_a_little_more():
    """The slowest stage's time in each of m + pp - 1 slots, as it was once, is up to 43 % more."""
    rng = random.Random(0)
    for _ in range(50):
        pp = rng.randint(2, 4)
        m, part = rng.randint(pp, 32), [rng.randint(1, 4) for _ in range(pp)]
        ranges = tuple(range(sum(part[:s]), sum(part[: s + 1])) for s in range(pp))
        asked = unequal._Job(work(sum(part)), [1.0] * pp, INF[:pp], m, m, math.inf)
        third = [one / 3 for one in part]
        run = simulate(one_f_one_b(pp, m), Times(third, third, third))
        took = asked.step((tuple(range(pp)),), (m,), ranges)
        assert 1 - 1e-9 < took / run.makespan < 1.2


def test_one_rank_three_times_slower_gets_a_third_of_the_samples():
    plan = choose(work(), [1.0, 1.0, 1.0, 3.0], INF[:4], 40, 1)[0]
    assert (plan.dp, plan.pp) == (4, 1)
    assert dict(zip(plan.stages, plan.shares, strict=True)) == {
        (0,): 12,
        (1,): 12,
        (2,): 12,
        (3,): 4,
    }
    assert plan.seconds == pytest.approx(40 / (3 + 1 / 3))


def test_where_no_rank_holds_the_model_it_becomes_a_pipeline_cut_by_speed():
    """Ten layers of 100 bytes; memory for eight: the fast rank takes more of them."""
    plan = choose(work(10, activation=0.0), [1.0, 3.0], [800.0, 800.0], 8, 8)[0]
    assert (plan.dp, plan.pp) == (1, 2) and sorted(plan.memory) == [0, 1]
    assert plan.memory[0] == 800 and plan.memory[1] == 200


def test_memory_of_a_rank_bounds_its_layers_though_it_is_fast():
    plan = choose(work(10, activation=0.0), [1.0, 3.0], [300.0, 800.0], 8, 8)[0]
    assert plan.memory == {0: 300.0, 1: 700.0}


def test_a_rank_that_would_only_be_waited_for_is_left_out():
    """The whole batch is two samples, and the third rank needs as long for one as a fast one for fifty."""
    plan = choose(work(), [1.0, 1.0, 50.0], INF[:3], 2, 1)[0]
    assert sorted(rank for copy in plan.stages for rank in copy) == [0, 1]


def test_a_slow_network_makes_fewer_copies():
    fast = choose(work(state=4e3), [1.0, 1.0], INF[:2], 8, 1, bandwidth=1e6)[0]
    slow = choose(work(state=4e3), [1.0, 1.0], INF[:2], 8, 1, bandwidth=1e3)[0]
    assert fast.dp == 2 and slow.dp == 1 and isinstance(slow, Plan)


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda: choose(work(), [1.0, 1.0], [100.0, 100.0], 8, 2), "states are 600 bytes, and the ranks have 200"),
        (lambda: choose(work(2, 100, 900), [1.0, 1.0], [500.0, 600.0], 8, 2),
         "layer 0 takes 1,900 bytes with 2 samples at once, and rank 1 has the most memory, 600"),
        (lambda: choose(work(), [1.0, 0.0], INF[:2], 8, 2), "seconds per sample above 0"),
        (lambda: choose(work(), [1.0], INF[:2], 8, 2), "bytes of memory"),
        (lambda: choose(work(), [1.0], INF[:1], 1, 2), "got 1 sample, 2 micro-batches"),
        (lambda: Work([1.0], [1.0, 2.0], [1.0], [1.0]), r"1 layer need as many states .*\[1.0, 2.0\]"),
        (lambda: Work([0.0], [1.0], [1.0], [1.0]), "cost nothing"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_with_its_numbers(act, said):
    with pytest.raises(ValueError, match=said):
        act()
