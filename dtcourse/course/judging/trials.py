"""A decision that is judged by running it: the answer may try some choices of a job, and names one.

A job is a function of a check: job(choice, *given) does a step on all ranks, under emulation, and returns what it
measured, in numbers. The answer is called on rank 0 with `measure`, which runs the job for one choice on all ranks and
returns the same numbers, each the largest of all ranks. What it chose, and the best choice, are measured by a second
launch, of ranks that know no answer. So neither the text nor the check holds a formula. A choice is a tuple; an answer
may name one of a single word by that word.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dtcourse.course.judging import own_ranks, trial_ranks
from dtcourse.course.judging.asking import Answer
from dtcourse.course.judging.requirements import require
from dtcourse.course.judging.trial_ranks import Choice, Measured
from dtcourse.course.judging.verdicts import require_near_best
from dtcourse.launch.each import Each

HOW: dict[str, Any] = {"backend": "ring", "clock": "virtual"}  # of both launches


@dataclass(frozen=True)
class Case:
    """A job on one emulated cluster, and what an answer may do there.

    job: what runs on each rank; what it measured, in numbers
    ranks: how many of them
    choices: all that there are
    given: what the job is given beside the choice
    told: what the answer is given beside `measure`
    most: choices that the answer may measure
    cluster: devices and network, as launch takes them
    hidden: what the job is given behind `given`, and an answer could read what is best from: None on rank 0, for each
    """

    job: Callable[..., Measured]
    ranks: int
    choices: list[Choice]
    given: Sequence[Any]
    told: Sequence[Any]
    most: int
    cluster: dict[str, Any]
    hidden: Sequence[Any] = ()

    def __post_init__(self) -> None:
        if self.ranks < 2:
            raise ValueError(
                f"an answer has rank 0, and another rank tells what was run: got ranks={self.ranks}"
            )

    @property
    def for_ranks(self) -> Each:
        """What the job is given, by rank. An answer has rank 0, and reads all that its process holds."""
        most = (*self.given, *(None for _ in self.hidden))
        return Each([most] + [(*self.given, *self.hidden)] * (self.ranks - 1))

    def tried(
        self,
        answer: Answer,
        probe: Callable[..., Measured] | None = None,
        probed: Sequence[Choice] = (),
    ) -> Tried:
        """What an answer chooses, and what that measures on ranks that know no answer.

        Raises CheckFailed as Answer.run does, and Unjudged where the judge's own ranks fail.

        probe, probed: a job that these ranks run, too, for each of these, with the same `given`: what a check needs to
                       know of the best choice, or of all
        """
        choice, seen = self.asked(answer)
        at = trial_ranks.place(self.choices, choice)
        runs = [(probe or self.job, one) for one in probed]
        if at is None:
            return Tried(choice, None, seen, self._run(runs))
        choice = self.choices[at]
        *each, measured = self._run([*runs, (self.job, choice)])
        return Tried(choice, measured, seen, each)

    def asked(self, answer: Answer) -> tuple[Any, list[tuple[Choice, Measured]]]:
        """What an answer chooses, and what it has seen (see Tried). Raises CheckFailed as Answer.run does."""
        what = (self.job, self.choices, self.for_ranks, self.told, self.most)
        how = HOW | {"timeout": 60.0, "known_to": [0]} | self.cluster
        run = answer.run(trial_ranks.session, self.ranks, *what, **how)
        choice = trial_ranks.named(self.choices, run[0])
        return choice, trial_ranks.told_by(run[1], self.choices, self.most)

    def search(self) -> dict[Choice, Measured]:
        """What each of the choices measures: all of them are run, by the judge's own ranks."""
        return dict(
            zip(self.choices, self._run([(self.job, one) for one in self.choices]), strict=True)
        )

    def _run(self, runs: list[tuple[Callable[..., Measured], Choice]]) -> list[Measured]:
        """What ranks of the judge's own measure in these."""
        if not runs:
            return []
        what = (trial_ranks.all_of, self.ranks, runs, self.for_ranks)
        return own_ranks.launched(*what, **(HOW | self.cluster))[0]


@dataclass(frozen=True)
class Tried:
    """What an answer chose, and what it measured before.

    measured: what the choice measures; None where it is not one of those that there are
    seen: (choice, what it measured), in the order in which the answer asked
    probed: what was measured of each of those for which that was asked
    """

    choice: Any
    measured: Measured | None
    seen: list[tuple[Choice, Measured]] = field(default_factory=list)
    probed: list[Measured] = field(default_factory=list)


def begin_together() -> float:
    """In a job: the moment of the virtual clock at which all ranks go on, when each of them has come here."""
    import torch.distributed as dist

    from dtcourse import emulation

    last = torch.tensor([emulation.now()], dtype=torch.double)
    dist.all_reduce(last, op=dist.ReduceOp.MAX)
    # A second later all of them have heard of it.
    start = float(last) + 1.0
    emulation.sleep(start - emulation.now())
    return start


def practise(name: str, choose: Callable[..., Any]) -> None:
    """In a notebook: prints what an answer measures on the first cluster of an exercise, and what it chooses."""
    from dtcourse.course.judging.framework import exercises
    from dtcourse.course.judging.runs import InKernel

    exercise = exercises()[name].load()
    case = sys.modules[exercise.checks[0].function.__module__].PRACTICE
    chosen, seen = case.asked(InKernel({exercise.takes[0]: choose}))
    for choice, measured in seen:
        print(choice, *(f"{number:.6g}" for number in measured))
    print("chosen:", chosen)


def require_possible(where: str, tried: Tried, example: Choice, why: str) -> Measured:
    """That an answer chose something that can be run; returns what that measured.

    where: which cluster, in words
    why: what is possible
    """
    require(
        isinstance(tried.choice, tuple) and len(tried.choice) == len(example),
        f"{where}: a choice is {len(example)} things, such as {example!r}; got {tried.choice!r}.",
    )
    require(tried.measured is not None, f"{where}: {tried.choice!r} is not possible. {why}")
    assert tried.measured is not None
    return tried.measured


def require_near_best_of(
    best: Sequence[Choice], answer: Answer, case: Case, where: str, why: str, hint: str
) -> None:
    """That an answer's choice takes nearly as few seconds as the quickest of `best`, which the judge's own ranks run.

    case: its job measures seconds and nothing else
    where, why: see require_possible
    """
    tried = case.tried(answer, case.job, best)
    # An example from the middle: the first ones are often the simplest choice, and that is the best one somewhere.
    (taken,) = require_possible(where, tried, case.choices[len(case.choices) // 2], why)
    least = min(seconds for (seconds,) in tried.probed)
    per, unit = (1e3, "ms") if least >= 1e-4 else (1e6, "µs")
    require_near_best(where, tried.choice, taken * per, least * per, unit, hint)
