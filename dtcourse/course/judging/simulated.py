"""A decision about a job that runs in one process: the answer may try some choices of it, and names one.

The same as trials.py, for what needs no ranks: replicas in one process, or a simulation with a clock of its own. So a
job is a function of a check, job(choice, *given), and returns what it measured, in numbers. The answer is called on
rank 0 with `measure`, which has rank 1 run the job for one choice: there it is counted what is tried, and what the job
is given is known there alone. What the choice is worth is what the judge's own run of it measures.

Each session begins with ranks that remember nothing. What costs much to run, and little more for all choices at once or
for a second job, is run by the judge `beforehand`: rank 1 is sent what was measured, and only looks it up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from dtcourse.course.judging import own_ranks
from dtcourse.course.judging.asking import Answer
from dtcourse.course.judging.threads import one_thread
from dtcourse.course.judging.trial_ranks import (
    Choice,
    Measured,
    counted,
    measuring,
    named,
    place,
    told_by,
)
from dtcourse.course.judging.trials import Tried, require_possible
from dtcourse.course.judging.verdicts import require_near_best
from dtcourse.launch.each import Each


@dataclass(frozen=True)
class Simulated:
    """A job in one process, and what an answer may do there.

    job: what is run; what it measured, in numbers
    choices: all that there are
    given: what the job is given beside the choice
    told: what the answer is given beside `measure`
    most: choices that the answer may measure
    beforehand: the judge runs the job for all choices before it asks, instead of rank 1 for those that are tried
    """

    job: Callable[..., Measured]
    choices: Sequence[Choice]
    given: Sequence[Any]
    told: Sequence[Any]
    most: int
    beforehand: bool = False

    def tried(self, answer: Answer) -> Tried:
        """What an answer chooses, and what that measures here.

        Raises CheckFailed as Answer.run does, and Unjudged where the job fails in this process.
        """
        choice, seen = self.asked(answer)
        at = place(self.choices, choice)
        if at is None:
            return Tried(choice, None, seen)
        return Tried(self.choices[at], self.measured(self.choices[at]), seen)

    def asked(self, answer: Answer) -> tuple[Any, list[tuple[Choice, Measured]]]:
        """What an answer chooses, and what it has seen (see Tried). Raises CheckFailed as Answer.run does."""
        job, given = self.job, tuple(self.given)
        if self.beforehand:
            job, given = _looked_up, (list(self.choices), self.every)
        what = (job, list(self.choices), Each([None, given]), tuple(self.told), self.most)
        run = answer.run(_session, 2, *what, timeout=60.0, known_to=[0])
        return named(self.choices, run[0]), told_by(run[1], self.choices, self.most)

    def measured(self, choice: Choice) -> Measured:
        """What one choice measures, in this process. Raises Unjudged where the job fails."""
        if "every" in vars(self) and (at := place(self.choices, choice)) is not None:
            return self.every[at]
        with own_ranks.no_verdict(), one_thread():
            return self.job(choice, *self.given)

    def search(self) -> dict[Choice, Measured]:
        """What each of the choices measures."""
        return dict(zip(self.choices, self.every, strict=True))

    def best(self) -> Choice:
        """The choice that measures least, where a job measures one number."""
        return self.choices[self.every.index(min(self.every))]

    @cached_property
    def every(self) -> list[Measured]:
        """What each of the choices measures, in their order; run once. Raises Unjudged where the job fails."""
        return [self.measured(choice) for choice in self.choices]


def require_near_best_of(
    best: Choice,
    answer: Answer,
    case: Simulated,
    where: str,
    why: str,
    hint: str,
    near: float = 1.01,
) -> None:
    """That an answer's choice takes nearly as few seconds as `best`.

    case: its job measures seconds and nothing else
    where, why: see trials.require_possible
    """
    tried = case.tried(answer)
    (taken,) = require_possible(where, tried, case.choices[len(case.choices) // 2], why)
    (least,) = case.measured(best)
    require_near_best(where, tried.choice, taken, least, "s", hint, near)


def _looked_up(choice: Choice, choices: Sequence[Choice], measured: Sequence[Measured]) -> Measured:
    """As a job: what the judge has measured."""
    at = place(choices, choice)
    assert at is not None, "it is one of them"
    return measured[at]


def _session(
    choose: Callable[..., Any],
    job: Callable[..., Measured],
    choices: list[Choice],
    given: tuple[Any, ...],
    told: tuple[Any, ...],
    most: int,
) -> Any:
    """On each of two ranks: rank 0 asks the answer, and rank 1 runs what it tries. What it chose; what was run."""
    import torch.distributed as dist

    if dist.get_rank():
        with one_thread():  # as the judge's own run has it
            return counted(choices, most, lambda at: _told(job(choices[at], *given)))
    index = torch.zeros(1, dtype=torch.int64)

    def run(at: int) -> Measured:
        dist.broadcast(index.fill_(at), 0)
        return _heard()

    measure, _ = measuring(choices, most, run)
    chosen = choose(measure, *told)
    dist.broadcast(index.fill_(-1), 0)
    return chosen


def _told(measured: Measured) -> Measured:
    """On rank 1: rank 0 hears of these numbers."""
    import torch.distributed as dist

    dist.broadcast(torch.tensor([len(measured)]), 1)
    dist.broadcast(torch.tensor(measured, dtype=torch.double), 1)
    return measured


def _heard() -> Measured:
    """On rank 0: the numbers that rank 1 tells."""
    import torch.distributed as dist

    length = torch.zeros(1, dtype=torch.int64)
    dist.broadcast(length, 1)
    measured = torch.zeros(int(length), dtype=torch.double)
    dist.broadcast(measured, 1)
    return tuple(measured.tolist())
