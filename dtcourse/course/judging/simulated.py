"""A decision about a job that runs in one process: the answer may try some choices of it, and names one.

The same as trials.py, for what needs no ranks: replicas in one process, or a simulation with a clock of its own. So a
job is a function of a check, job(choice, *given), and returns what it measured, in numbers. The answer is called with
`measure`, which runs the job for one choice, in the answer's process. What the choice is worth is what the judge's own
run of it measures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dtcourse.course.judging import own_ranks
from dtcourse.course.judging.asking import Answer
from dtcourse.course.judging.threads import one_thread
from dtcourse.course.judging.trial_ranks import Choice, Measured, measuring, named, place, told_by
from dtcourse.course.judging.trials import Tried, require_possible
from dtcourse.course.judging.verdicts import require_near_best


@dataclass(frozen=True)
class Simulated:
    """A job in one process, and what an answer may do there.

    job: what is run; what it measured, in numbers
    choices: all that there are
    given: what the job is given beside the choice
    told: what the answer is given beside `measure`
    most: choices that the answer may measure
    """

    job: Callable[..., Measured]
    choices: Sequence[Choice]
    given: Sequence[Any]
    told: Sequence[Any]
    most: int

    def tried(self, answer: Answer) -> Tried:
        """What an answer chooses, and what that measures here.

        Raises CheckFailed as Answer.call does, and Unjudged where the job fails in this process.
        """
        choice, seen = self.asked(answer)
        at = place(self.choices, choice)
        if at is None:
            return Tried(choice, None, seen)
        return Tried(self.choices[at], self.measured(self.choices[at]), seen)

    def asked(self, answer: Answer) -> tuple[Any, list[tuple[Choice, Measured]]]:
        """What an answer chooses, and what it has seen (see Tried). Raises CheckFailed as Answer.call does."""
        what = (self.job, list(self.choices), tuple(self.given), tuple(self.told), self.most)
        got, seen = answer.call(_session, *what, timeout=60.0)
        return named(self.choices, got), told_by(seen, self.choices, self.most)

    def measured(self, choice: Choice) -> Measured:
        """What one choice measures, in this process. Raises Unjudged where the job fails."""
        with own_ranks.no_verdict(), one_thread():
            return self.job(choice, *self.given)

    def search(self) -> dict[Choice, Measured]:
        """What each of the choices measures."""
        return {choice: self.measured(choice) for choice in self.choices}


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


def _session(
    choose: Callable[..., Any],
    job: Callable[..., Measured],
    choices: list[Choice],
    given: tuple[Any, ...],
    told: tuple[Any, ...],
    most: int,
) -> tuple[Any, list[tuple[int, Measured]]]:
    """In the answer's process: what it chose, and the places of what it had measured, each with what that measures."""
    measure, seen = measuring(choices, most, lambda at: job(choices[at], *given))
    with one_thread():
        chosen = choose(measure, *told)
    return chosen, list(seen.items())
