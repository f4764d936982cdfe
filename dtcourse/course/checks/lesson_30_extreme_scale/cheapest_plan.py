"""The cheapest of several plans in time, with failures and the critical batch counted; and how often to save."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from dtcourse.course.checks.lesson_30_extreme_scale.goodputs import goodput
from dtcourse.course.judging import Answer, Exercise, call_each, number, require
from dtcourse.fault_tolerance import FailingJob, first_order_waste, young
from dtcourse.plural import plural

PLAN = Exercise(
    "cheapest_plan",
    lesson="30",
    title="The cheapest plan in time",
    takes=("cheapest_plan",),
    target="on 24 jobs of 5 to 8 plans, drawn anew each time: in time, at most 1.005 times the GPU-days of the "
    "cheapest, and at least 0.99 of the goodput of the best interval",
    forbidden=("dtcourse.fault_tolerance", "dtcourse.planner"),
)

JOBS = 6  # of each check
NEAR, GOODPUT = 1.005, 0.99
CLEAR = 1.02  # by which no plan is near the deadline, nor near the cheapest
DAY = 86_400
Plan = Mapping[str, Any]
Job = Mapping[str, float]
Case = tuple[list[Plan], Job]


def failing(plan: Plan, job: Job) -> FailingJob:
    """What becomes of this plan's time."""
    return FailingJob(
        plan["state"] / job["storage"], job["lifetime"] / plan["devices"], job["restart"]
    )


def days(
    plan: Plan,
    job: Job,
    batch: bool = True,
    failures: bool = True,
    restarts: bool = True,
    order: bool = True,
) -> float:
    """Until the loss is reached.

    What is counted: the critical batch; failures at all; the time of restarts; that failures come in saves, in restarts
    and soon after one another (not so: the first-order sum, at its best interval)
    """
    steps = job["steps"] * (1 + job["critical"] / plan["batch"] * batch)
    if not restarts:
        job = {**job, "restart": 0.0}
    one = failing(plan, job)
    if not failures:
        kept = 1.0
    elif order:
        kept = goodput(one)
    else:
        kept = max(1e-9, 1 - first_order_waste(one, young(one.save, one.mtbf)))
    return steps * plan["seconds"] / kept / DAY


def cheapest(plans: Sequence[Plan], job: Job, **counted: bool) -> int | None:
    """The number of the plan, or None where none is in time."""
    found = [days(plan, job, **counted) for plan in plans]
    in_time = [n for n, one in enumerate(found) if one <= job["days"]]
    return min(in_time, key=lambda n: plans[n]["devices"] * found[n], default=None)


# Seconds from one failure of a device to the next.
LIFETIMES = {
    "batch": (1e8, 4e8),
    "failures": (1e7, 6e7),
    "restarts": (1e7, 6e7),
    "order": (4e6, 2e7),
}
HINTS = {
    "batch": "How many steps does a plan take with its own batch?",
    "failures": "How much of its time does a plan lose to saves and failures?",
    "restarts": "What does a failure cost beside the work that has to be done again?",
    "order": "What do failures cost that come in a save or a restart? Can a sum of parts lose more than all the time?",
}


def _hint(plans: Sequence[Plan], job: Job, at: int, drawn_for: str) -> str:
    """About what was perhaps left out: without it this plan is the cheapest."""
    for left_out in sorted(HINTS, key=lambda one: one != drawn_for):
        if cheapest(plans, job, **{left_out: False}) == at:
            return HINTS[left_out]
    return "What are the days and the GPU-days of each plan, and which of them end in time?"


def drawn(without: str) -> Case:
    """A job in which an answer that leaves this out takes another plan.

    without: one of HINTS; see `days`
    """
    while True:
        job = {
            "steps": random.uniform(1e4, 4e4), "critical": random.uniform(2e6, 12e6),
            "lifetime": random.uniform(*LIFETIMES[without]),
            "storage": random.uniform(5e10, 4e11), "restart": random.uniform(200, 900),
        }  # fmt: skip
        work, fixed = random.uniform(2e-3, 8e-3), random.uniform(0.5, 3.0)
        state = random.uniform(1e12, 4e12)
        plans: list[Plan] = []
        for _ in range(random.randint(5, 8)):
            devices = random.choice([512, 1024, 2048, 4096, 8192])
            batch = random.choice([1, 2, 4, 8, 16]) * 2**20
            seconds = work * batch / devices * random.uniform(0.9, 1.2) + fixed
            plan = {"devices": devices, "batch": batch, "seconds": seconds}
            plans.append(plan | {"state": state * 4 ** random.uniform(-1, 1)})
        each = [(plan, days(plan, job)) for plan in plans]
        took = sorted(one for _, one in each)
        # Between two plans' days: some are in time, and not all.
        at = random.randint(1, len(plans) - 2)
        job["days"] = (took[at] * took[at + 1]) ** 0.5
        costs = sorted(plan["devices"] * one for plan, one in each if one <= job["days"])
        clear = all(max(one, job["days"]) / min(one, job["days"]) > CLEAR for one in took)
        if not clear or costs[1] < CLEAR * costs[0]:
            continue
        if cheapest(plans, job, **{without: False}) not in (None, cheapest(plans, job)):
            return plans, job


def _require(answer: Answer, without: str) -> None:
    cases = [drawn(without) for _ in range(JOBS)]
    for (plans, job), got in zip(cases, call_each(answer, cases, shuffled=True), strict=True):
        said = [number(one) for one in got] if isinstance(got, (list, tuple)) else []
        possible = len(said) == 2 and said[0] in range(len(plans))
        require(
            possible and isinstance(said[1], (int, float)) and 0 < said[1] < math.inf,
            f"An answer is (the number of a plan, seconds between saves), such as (0, 900.0); got {got!r}.",
        )
        at, every = int(said[0]), float(said[1])
        where = f"Of {plural(len(plans), 'plan')} with a deadline of {job['days']:.1f} days"
        hint = _hint(plans, job, at, without)
        took, best = days(plans[at], job), cheapest(plans, job)
        assert best is not None
        require(
            took <= job["days"],
            f"{where} you take one of {plans[at]['devices']:,} devices, which takes {took:.1f} days. {hint}",
        )
        cost, least = plans[at]["devices"] * took, plans[best]["devices"] * days(plans[best], job)
        require(
            cost <= NEAR * least,
            f"{where} you take one of {cost:,.0f} GPU-days; another one in time takes {least:,.0f}. {hint}",
        )
        one = failing(plans[at], job)
        kept, most = goodput(one, every), goodput(one)
        require(
            kept >= GOODPUT * most,
            f"{where}, {plans[at]['devices']:,} devices that save every {every:,.0f} s keep {kept:.1%} of their time, "
            f"and {most:.1%} with the best interval. How long does a save of this plan take, and how often does "
            "the whole job fail?",
        )


@PLAN.check("batches that differ", points=2)
def check_batch(answer: Answer) -> None:
    """A step of a larger batch is worth more, and not in proportion."""
    _require(answer, "batch")


@PLAN.check("devices that fail", points=2)
def check_failures(answer: Answer) -> None:
    """More devices fail more often."""
    _require(answer, "failures")


@PLAN.check("restarts that take long", points=2)
def check_restarts(answer: Answer) -> None:
    """A failure costs more than the work since the last save."""
    _require(answer, "restarts")


@PLAN.check("failures that come quickly", points=3)
def check_order(answer: Answer) -> None:
    """They come in saves and restarts, too."""
    _require(answer, "order")
