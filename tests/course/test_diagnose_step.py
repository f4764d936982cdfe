"""What exercise 06-3 says of its steps is true of them: seen by running each with other buckets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dtcourse.course.checks.lesson_06_data_parallel import drawn_steps, traced_steps
from dtcourse.course.checks.lesson_06_data_parallel.traced_steps import Step

RANKS, EACH = 3, 4


def ends(steps: list[Step]) -> list[float]:
    """When each step's last rank has done all, in ms."""
    traces = traced_steps.run(steps, RANKS)
    return [max(row[3] for rows in events for row in rows) for _, events, *_ in traces]


def with_pairs(step: Step) -> Step:
    """The same step; two neighbours are one bucket."""
    cut = step.buckets
    pairs = [
        [layer for bucket in cut[i : i + 2] for layer in bucket] for i in range(0, len(cut), 2)
    ]
    return replace(step, buckets=pairs)


def drawn(kind: str) -> list[Step]:
    return [drawn_steps.drawn(kind, turn, RANKS) for turn in range(EACH)]


def test_larger_buckets_save_a_sixth_where_buckets_are_too_small_and_nothing_elsewhere():
    # A hundredth, and in odd turns a pause, is what ranks do not do alike.
    small, healthy = drawn("small"), drawn("healthy")
    now = ends([*small, *healthy])
    larger = ends([with_pairs(step) for step in (*small, *healthy)])
    assert all(b < 0.87 * a for a, b in zip(now[:EACH], larger[:EACH], strict=True))
    assert all(b > 0.96 * a for a, b in zip(now[EACH:], larger[EACH:], strict=True))


def test_without_differences_between_ranks_a_step_takes_what_was_predicted_when_it_was_drawn():
    step = drawn_steps.drawn("healthy", 0, RANKS)
    seconds = [[2e-3] * len(step.forward) for _ in range(RANKS)]
    sizes = [len(bucket) for bucket in step.buckets]
    predicted = drawn_steps.through(sizes, 2.0, step.blocks * traced_steps.BYTES)
    assert ends([replace(step, seconds=seconds)])[0] == pytest.approx(predicted, rel=1e-9)


def test_a_blocked_bucket_leaves_later_than_in_the_order_of_definition():
    (step,) = (drawn_steps.drawn("blocked", 0, RANKS),)
    in_order = replace(step, kind="healthy", where=None, forward=sorted(step.forward))
    begins = [
        min(row[2] for row in events[0] if row[0] == "all_reduce")
        for _, events, *_ in traced_steps.run([step, in_order], RANKS)
    ]
    layers = sum(map(len, step.buckets[1:3]))
    assert begins[0] > begins[1] + 2 * 0.9e3 * layers * min(map(min, step.seconds))


@pytest.mark.parametrize("kind", ["healthy", "waits", "blocked", "small"])
def test_what_concerns_times_leaves_the_mean(kind):
    for _, _, own, used in traced_steps.run(drawn(kind), RANKS):
        assert used.allclose(own.mean(0).expand_as(used), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["twice", "undivided", "order"])
def test_what_concerns_gradients_leaves_no_rank_or_one_rank_wrong(kind):
    for _, _, own, used in traced_steps.run(drawn(kind), RANKS):
        wrong = [not one.allclose(own.mean(0), rtol=1e-3) for one in used]
        assert sum(wrong) == (1 if kind == "twice" else RANKS)


def test_no_check_is_given_a_step_twice_and_each_is_given_both_numbers_of_ranks(monkeypatch):
    launches = []

    def run(steps, ranks):
        launches.append(ranks)
        return [(step.buckets, [], ranks, step.gradients) for step in steps]

    monkeypatch.setattr(drawn_steps, "run", run)
    monkeypatch.setattr(drawn_steps, "_run", {})
    seen, of_ranks = [], {kind: set() for kind in drawn_steps.KINDS}
    for _ in range(20):
        for kind in drawn_steps.KINDS:
            cases = drawn_steps.cases(kind)
            assert [right[0] for _, right in cases] == ["healthy"] * EACH + [kind] * EACH
            seen += [trace[3] for trace, right in cases if right[0] == kind]
            of_ranks[kind] |= {trace[2] for trace, _ in cases}
    assert launches == [3, 4] * 20
    assert len({id(one) for one in seen}) == len(seen) == 20 * EACH * len(drawn_steps.KINDS)
    assert all(numbers == {3, 4} for numbers in of_ranks.values())
