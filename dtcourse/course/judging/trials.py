"""A decision that is judged by running it: the answer may try some choices of a job, and names one.

A job is a function of a check: job(choice, *given) does a step on all ranks, under emulation, and returns what it
measured, in numbers. The answer is called on rank 0 with `measure`, which runs the job for one choice on all ranks and
returns the same numbers, each the largest of all ranks. The best choice is found by running them all. So neither the
text nor the check holds a formula. A choice is a tuple; an answer may name one of a single word by that word.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dtcourse.course.judging.asking import Answer
from dtcourse.course.judging.requirements import require
from dtcourse.course.judging.verdicts import require_near_best

Choice = tuple[Any, ...]
Measured = tuple[float, ...]


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
    """

    job: Callable[..., Measured]
    ranks: int
    choices: list[Choice]
    given: Sequence[Any]
    told: Sequence[Any]
    most: int
    cluster: dict[str, Any]

    def tried(
        self,
        answer: Answer,
        probe: Callable[..., Measured] | None = None,
        probed: Sequence[Choice] = (),
    ) -> Tried:
        """What an answer chooses. Raises CheckFailed as Answer.run does.

        probe, probed: a job that the same ranks run afterwards for each of these, with the same `given`: what a check
                       needs to know of all choices, where a launch of the judge's own would cost more. It is measured
                       as an answer's trials are, and who changes what measures is refused
        """
        how = {"backend": "ring", "clock": "virtual", "timeout": 60.0} | self.cluster
        what = (self.job, self.choices, self.given, self.told, self.most, probe or _nothing, probed)
        run = answer.run(_session, self.ranks, *what, **how)
        choice, measured, seen, each = run[0]
        pairs = [(tuple(a), tuple(b)) for a, b in seen]
        return Tried(choice, measured and tuple(measured), pairs, list(map(tuple, each)))

    def search(self) -> dict[Choice, Measured]:
        """What each of the choices measures: all of them are run, by the judge's own ranks."""
        from dtcourse import launch

        how: dict[str, Any] = {
            "backend": "ring",
            "clock": "virtual",
            "device": "cpu",
            "timeout": 120.0,
        }
        run = launch(_all, self.ranks, self.job, self.choices, self.given, **(how | self.cluster))
        return dict(zip(self.choices, run[0], strict=True))


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
    tried = case.tried(InKernel({exercise.takes[0]: choose}))
    for choice, measured in tried.seen:
        print(choice, *(f"{number:.6g}" for number in measured))
    print("chosen:", tried.choice)


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
    """That an answer's choice takes nearly as few seconds as the quickest of `best`, which the same ranks run after it.

    case: its job measures seconds and nothing else
    where, why: see require_possible
    """
    tried = case.tried(answer, case.job, best)
    # An example from the middle: the first ones are often the simplest choice, and that is the best one somewhere.
    (taken,) = require_possible(where, tried, case.choices[len(case.choices) // 2], why)
    least = min(seconds for (seconds,) in tried.probed)
    per, unit = (1e3, "ms") if least >= 1e-4 else (1e6, "µs")
    require_near_best(where, tried.choice, taken * per, least * per, unit, hint)


def _measured(job: Callable[..., Measured], choice: Choice, given: Sequence[Any]) -> Measured:
    """On all ranks: the job once; of each number the largest of all ranks."""
    import torch.distributed as dist

    found = torch.tensor(job(choice, *given), dtype=torch.double)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return tuple(found.tolist())


def _all(
    job: Callable[..., Measured], choices: list[Choice], given: Sequence[Any]
) -> list[Measured]:
    return [_measured(job, choice, given) for choice in choices]


def _nothing(choice: Choice) -> Measured:
    return ()


def _session(
    choose: Any,
    job: Callable[..., Measured],
    choices: list[Choice],
    given: Any,
    told: Any,
    most: int,
    probe: Callable[..., Measured],
    probed: list[Choice],
) -> tuple[Any, Measured | None, list[tuple[Choice, Measured]], list[Measured]] | None:
    """On each rank: rank 0 asks the answer, and all run what it tries. The parts of a Tried, as data that travels."""
    import torch.distributed as dist

    index = torch.zeros(1, dtype=torch.int64)
    while dist.get_rank():
        dist.broadcast(index, 0)
        if index < 0:
            _all(probe, probed, given)
            return None
        _measured(job, choices[int(index)], given)
    seen: dict[Choice, Measured] = {}

    def place(choice: Any) -> int | None:
        # True is 1 in Python, and here it is not.
        for at, one in enumerate(choices):
            if one == choice and list(map(type, one)) == list(map(type, choice)):
                return at
        return None

    def run(at: int) -> Measured:
        index.fill_(at)
        dist.broadcast(index, 0)
        return _measured(job, choices[at], given)

    def measure(*choice: Any) -> Measured:
        at = place(choice)
        if at is None:
            raise ValueError(f"measure{choice!r}: this is no possible choice")
        if choice not in seen:
            if len(seen) == most:
                raise ValueError(
                    f"measure{choice!r}: {most} choices have been measured, and no more may be"
                )
            seen[choice] = run(at)
        return seen[choice]

    got = choose(measure, *told)
    choice = tuple(got) if isinstance(got, (list, tuple)) else got
    if isinstance(got, str) and len(choices[0]) == 1:
        choice = (got,)
    at = place(choice)
    measured = None if at is None else run(at)
    index.fill_(-1)
    dist.broadcast(index, 0)
    return choice, measured, list(seen.items()), _all(probe, probed, given)
