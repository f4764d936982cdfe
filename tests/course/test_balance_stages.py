"""The best choices of lesson 22b's exercise on stages: all are played on paper, and some are run, which is the same."""

from __future__ import annotations

import pytest

from dtcourse import launch
from dtcourse.course.checks.lesson_22b_choosing_a_layout import balance_stages, stages
from dtcourse.course.judging.verdicts import NEAR

CASES = (*balance_stages.ROOMY, *balance_stages.TIGHT)
OWN = (
    "dtcourse/course/checks/lesson_22b_choosing_a_layout/balance_stages.py",
    "dtcourse/course/checks/lesson_22b_choosing_a_layout/clocked_pipeline.py",
    "dtcourse/course/checks/lesson_22b_choosing_a_layout/stages.py",
    "tests/course/test_balance_stages.py",
)
BEST, EVERY = 4, 60  # choices that are run: the best ones, and one of so many others
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.stands_on(*OWN)]


def played(job, choice):
    """(seconds of a step, bytes of the fullest rank), from the order of 1F1B's actions alone."""
    layers, order = choice
    took, weights, kept = (
        stages.by_stage(job.blocks, layers, numbers)
        for numbers in (job.forward, job.weights, job.kept)
    )
    count, last = job.micro_batches, stages.STAGES - 1
    inside, between = (job.latency + job.passed / rate for rate in (job.inside, job.between))
    border = [inside, between if order == "pp dp" else inside, inside]
    ended = {}

    def end(stage, action):
        """Of action 0, 1, ...: the forwards ahead, then one forward and one backward, then the backwards left."""
        if action < 0:
            return 0.0
        if (stage, action) not in ended:
            back, number = at(stage, action)
            source = stage + 1 if back else stage - 1
            start = end(stage, action - 1)
            if 0 <= source <= last:
                arrives = end(source, place(source, back, number)) + border[min(stage, source)]
                start = max(start, arrives)
            ended[stage, action] = start + (1 + back) * took[stage]
        return ended[stage, action]

    def order_of(stage):
        ahead = min(last - stage, count)
        pairs = [(b, i + (0 if b else ahead)) for i in range(count - ahead) for b in (False, True)]
        rest = [(True, i) for i in range(count - ahead, count)]
        return [(False, i) for i in range(ahead)] + pairs + rest

    orders = [order_of(stage) for stage in range(stages.STAGES)]

    def at(stage, action):
        return orders[stage][action]

    def place(stage, back, number):
        return orders[stage].index((back, number))

    rate = job.inside if order == "pp dp" else job.between
    seconds = max(
        end(stage, 2 * count - 1) + 2 * job.latency + weights[stage] / rate
        for stage in range(stages.STAGES)
    )
    held = max(
        stages.STATES * weights[stage] + min(stages.STAGES - stage, count) * kept[stage]
        for stage in range(stages.STAGES)
    )
    return seconds, held


@pytest.mark.parametrize("case", CASES, ids=["heavy", "wide", "heady", "long"])
def test_no_choice_that_fits_is_faster_and_most_are_slower(case):
    job, room, best, seconds = case
    found = {choice: played(job, choice) for choice in stages.choices(job.blocks)}
    fits = {choice: took for choice, (took, held) in found.items() if held <= room}
    assert fits[best] == min(fits.values()) == pytest.approx(seconds, rel=1e-4)
    assert sum(took <= NEAR * fits[best] for took in fits.values()) <= 2

    some = [*sorted(fits, key=fits.get)[:BEST], *list(found)[::EVERY]]
    how = stages.options(*balance_stages.LINKS) | {"timeout": 200}
    run = launch(
        stages.steps, stages.RANKS, None, [(one, tuple(job)) for one in some], device="cpu", **how
    )
    for choice, *by_rank in zip(some, *run, strict=True):
        measured = tuple(max(numbers) for numbers in zip(*by_rank, strict=True))
        assert measured == pytest.approx(found[choice], rel=1e-9), choice
