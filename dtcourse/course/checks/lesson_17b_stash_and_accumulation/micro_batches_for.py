"""Micro-batches for a budget, scored through the simulator."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from dtcourse.course.judging import Answer, Exercise, require
from dtcourse.plural import plural

BUDGET = Exercise(
    "micro_batches_for",
    lesson="17b",
    title="Micro-batches for a budget",
    takes=("micro_batches_for",),
    target="within memory and idle share, and at most 1 % longer than the shortest step, on some sixty random budgets",
    forbidden=("dtcourse.pipeline_parallel", "dtcourse.simulator"),
)

SLACK = 1e-9


@dataclass(frozen=True)
class Budget:
    """What the answer is given, by the same names."""

    ranks: int
    batch: int
    per_sample: float
    overhead: float
    stash: float
    boundary: float
    memory: float
    idle: float

    def __str__(self) -> str:
        return ", ".join(f"{name}={value:.4g}" for name, value in asdict(self).items())

    def kept(self, m: int, recompute: bool) -> float:
        """Bytes on a rank when its first backward computes."""
        if recompute:
            return self.batch * self.boundary + self.batch // m * self.stash
        return self.batch * self.stash

    def idle_share(self, m: int) -> float:
        """The bubble's share."""
        return (self.ranks - 1) / (m + self.ranks - 1)

    def plans(self) -> Iterator[tuple[int, bool]]:
        """All that meet the conditions."""
        for m in range(1, self.batch + 1):
            for recompute in (False, True):
                fits = self.kept(m, recompute) <= self.memory * (1 + SLACK)
                if self.batch % m == 0 and fits and self.idle_share(m) <= self.idle + SLACK:
                    yield m, recompute

    def seconds(self, m: int, recompute: bool) -> float:
        """Of a step, as the simulator finds it."""
        from dtcourse.pipeline_parallel.schedules import gpipe
        from dtcourse.pipeline_parallel.simulate import Times, simulate

        forward = self.batch // m * self.per_sample
        backward = self.overhead + (3 if recompute else 2) * forward
        times = Times(self.overhead + forward, backward / 2, backward / 2)
        return simulate(gpipe(self.ranks, m), times).makespan


def _budget(memory: float, overhead: float, idle: float) -> Budget:
    """A random one. memory: of what stashing the whole batch takes; overhead: of a sample's forward."""
    batch = random.choice((24, 32, 48, 64, 96))
    stash, per_sample = random.uniform(5, 50), random.uniform(1e-4, 1e-2)
    boundary = stash / random.uniform(8, 40)
    ranks = random.randint(2, 8)
    return Budget(
        ranks,
        batch,
        per_sample,
        overhead * per_sample,
        stash,
        boundary,
        memory * batch * stash,
        idle,
    )


def _call(micro_batches_for: Any, budgets: list[dict[str, Any]]) -> list[Any]:
    return [micro_batches_for(**one) for one in budgets]


def _answers(answer: Answer, budgets: list[Budget]) -> Iterator[tuple[Budget, tuple[int, bool]]]:
    """Each with a plan that meets the conditions."""
    told = answer.call(_call, [asdict(one) for one in budgets])
    for budget, plan in zip(budgets, told, strict=True):
        require(
            isinstance(plan, (tuple, list))
            and len(plan) == 2
            and isinstance(plan[0], int)
            and isinstance(plan[1], (bool, int)),
            f"For {budget}: {plan!r} came back, where a pair such as (8, True) is wanted; there is a plan that "
            "meets all conditions.",
        )
        m, recompute = plan[0], bool(plan[1])
        require(
            1 <= m <= budget.batch and budget.batch % m == 0,
            f"For {budget}: {plural(m, 'micro-batch', 'micro-batches')} do not divide the batch.",
        )
        kept = budget.kept(m, recompute)
        require(
            kept <= budget.memory * (1 + SLACK),
            f"For {budget}: {m} micro-batches {'with' if recompute else 'without'} recomputation keep {kept:.4g} "
            "bytes. What does GPipe hold when the first backward computes: how much of it with recomputation, and "
            "how much without?",
        )
        require(
            budget.idle_share(m) <= budget.idle + SLACK,
            f"For {budget}: with {m} micro-batches {budget.idle_share(m):.3f} of the time is idle. How many rounds "
            "does a step take, and in how many does a rank work?",
        )
        yield budget, (m, recompute)


def _shortest(answer: Answer, budgets: list[Budget]) -> None:
    for budget, plan in _answers(answer, budgets):
        seconds = {one: budget.seconds(*one) for one in budget.plans()}
        best = min(seconds, key=lambda one: seconds[one])
        require(
            seconds[plan] <= 1.01 * seconds[best],
            f"For {budget}: a step with {plan} takes {seconds[plan]:.4g} s, and with {best} {seconds[best]:.4g} s. "
            "What does one more micro-batch cost, what does it save, and is recomputation needed there?",
        )


@BUDGET.check("there is memory enough: the best number of micro-batches", points=3)
def check_ample(answer: Answer) -> None:
    """Overheads from a tenth of a sample's forward to eight of them;
    some idle shares are met by one sample each only.
    """
    budgets = []
    for budget in [_budget(1.5, overhead, 1) for overhead in (2, 4, 8)]:
        budgets.append(replace(budget, idle=1.001 * budget.idle_share(budget.batch)))
    budgets += [_budget(1.5, o, 0.75) for o in (0.1, 0.5, 1, 2, 4, 8) for _ in range(4)]
    _shortest(answer, [one for one in budgets if any(True for _ in one.plans())])


@BUDGET.check("there is little memory", points=3)
def check_tight(answer: Answer) -> None:
    """Some plans fit with recomputation, some without."""
    budgets = [
        _budget(memory, overhead, 0.5)
        for memory in (0.15, 0.3, 0.6, 1.0)
        for overhead in (0.5, 4)
        for _ in range(4)
    ]
    _shortest(answer, [one for one in budgets if any(True for _ in one.plans())])


@BUDGET.check("nothing meets the conditions: None", points=2, needs=("check_ample",))
def check_none(answer: Answer) -> None:
    """Too little memory, or too small an idle share for the batch."""
    budgets = [
        _budget(0.001, 1, 0.9),
        _budget(1.5, 1, 0.001),
        _budget(0.01, 1, 0.5),
        _budget(2, 1, 0.005),
    ]
    for budget, plan in zip(
        budgets, answer.call(_call, [asdict(one) for one in budgets]), strict=True
    ):
        require(
            plan is None,
            f"For {budget}: you say {plan!r}, and no number of micro-batches meets both conditions: None is the "
            "answer. Which one does yours break?",
        )
