"""The ranks of a decision that is run (trials.py): rank 0 has the answer, and the others tell what was run.

An answer reaches all that lies in its own process. Where points are given that is rank 0's alone: no line of it has run
in the others (runs.attempt, known_to), and they tell what it has tried. What its choice is worth is measured by ranks
of another launch. In a notebook all ranks have the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dtcourse.course.judging.requirements import Refused

Choice = tuple[Any, ...]
Measured = tuple[float, ...]
Job = Callable[..., Measured]


def named(choices: Sequence[Choice], got: Any) -> Any:
    """What an answer returned, as a choice: a list is a tuple here, and a word the choice of that word alone."""
    if isinstance(got, str) and len(choices[0]) == 1:
        return (got,)
    return tuple(got) if isinstance(got, (list, tuple)) else got


def place(choices: Sequence[Choice], choice: Any) -> int | None:
    """Where a choice is among them; None where it is not. True is 1 in Python, and here it is not.

    What an answer gives may be of a class of its own, which says for itself what it is equal to, and so may that class.
    """
    for at, one in enumerate(choices):
        if _is_plainly(one, choice):
            return at
    return None


def _is_plainly(one: Any, other: Any) -> bool:
    """Whether two things are of one type, and equal, and so are their parts; nothing of `other` is asked for that."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_is_plainly, one, other))
    return bool(one == other)


def told_by(tries: Any, choices: Sequence[Choice], most: int) -> list[tuple[Choice, Measured]]:
    """What was tried, as rank 1 tells it. Raises Refused where that cannot be."""
    try:
        places = [at for at, _ in tries]
        told = [tuple(map(float, numbers)) for _, numbers in tries]
    except Exception:  # in a notebook, that rank may say anything
        places, told = [-1], []
    possible = all(type(at) is int and 0 <= at < len(choices) for at in places)
    if not possible or len(places) > most:
        raise Refused("the answer speaks for the rank that tells what was run")
    return [(choices[at], numbers) for at, numbers in zip(places, told, strict=True)]


def measuring(
    choices: Sequence[Choice], most: int, run: Callable[[int], Measured]
) -> tuple[Callable[..., Measured], dict[int, Measured]]:
    """What an answer is given as `measure`, and what has been measured by it, by its place.

    most: choices that may be measured; one of them again is not run again
    run: measures the choice at this place
    """
    seen: dict[int, Measured] = {}

    def measure(*choice: Any) -> Measured:
        at = place(choices, choice)
        if at is None:
            raise ValueError(f"measure{choice!r}: this is no possible choice")
        if at not in seen:
            if len(seen) == most:
                raise ValueError(
                    f"measure{choice!r}: {most} choices have been measured, and no more may be"
                )
            seen[at] = run(at)
        return seen[at]

    return measure, seen


def _measured(job: Job, choice: Choice, given: Sequence[Any]) -> Measured:
    """On all ranks: the job once; of each number the largest of all ranks."""
    import torch.distributed as dist

    found = torch.tensor(job(choice, *given), dtype=torch.double)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return tuple(found.tolist())


def all_of(runs: Sequence[tuple[Job, Choice]], given: Sequence[Any]) -> list[Measured]:
    """On ranks that know no answer: each job for its choice, one after the other."""
    return [_measured(job, choice, given) for job, choice in runs]


def session(
    choose: Any, job: Job, choices: list[Choice], given: Sequence[Any], told: Any, most: int
) -> Any:
    """On each rank: rank 0 asks the answer, and all run what it tries. What it chose; on the others, what was run."""
    import torch.distributed as dist

    if dist.get_rank():
        return counted(choices, most, lambda at: _measured(job, choices[at], given))
    index = torch.zeros(1, dtype=torch.int64)

    def run(at: int) -> Measured:
        index.fill_(at)
        dist.broadcast(index, 0)
        return _measured(job, choices[at], given)

    measure, _ = measuring(choices, most, run)
    chosen = choose(measure, *told)
    index.fill_(-1)
    dist.broadcast(index, 0)
    return chosen


def counted(
    choices: Sequence[Choice], most: int, run: Callable[[int], Measured]
) -> list[tuple[int, Measured]]:
    """On a rank where no answer is called: the places of what is tried, each with what it measures.

    Rank 0 names a place to try, and -1 at the end. Raises Refused where it names more than `most`.

    run: this rank's part of measuring the choice at a place
    """
    import torch.distributed as dist

    tries: list[tuple[int, Measured]] = []
    index = torch.zeros(1, dtype=torch.int64)
    while True:
        dist.broadcast(index, 0)
        at = int(index)
        if at == -1:
            return tries
        if not 0 <= at < len(choices):
            raise Refused("the answer has something run that is none of the choices")
        tries.append((at, run(at)))
        if len(tries) > most:
            raise Refused(f"the answer has more than {most} choices run")
