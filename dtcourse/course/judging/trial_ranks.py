"""The ranks of a decision that is run (trials.py): rank 0 has the answer, and the others tell what was run.

An answer reaches all that lies in its own process, so rank 0 is believed in nothing but what it names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dtcourse.course.judging.requirements import Refused

Choice = tuple[Any, ...]
Measured = tuple[float, ...]


def _measured(job: Callable[..., Measured], choice: Choice, given: Sequence[Any]) -> Measured:
    """On all ranks: the job once; of each number the largest of all ranks."""
    import torch.distributed as dist

    found = torch.tensor(job(choice, *given), dtype=torch.double)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return tuple(found.tolist())


def all_of(
    job: Callable[..., Measured], choices: list[Choice], given: Sequence[Any]
) -> list[Measured]:
    """On all ranks: each of the choices, one after the other."""
    return [_measured(job, choice, given) for choice in choices]


def nothing(choice: Choice) -> Measured:
    """A probe that measures nothing."""
    return ()


def session(
    choose: Any,
    job: Callable[..., Measured],
    choices: list[Choice],
    given: Any,
    told: Any,
    most: int,
    probe: Callable[..., Measured],
    probed: list[Choice],
) -> Any:
    """On each rank: rank 0 asks the answer, and all run what it tries. What it chose, or what was run (_asked)."""
    import torch.distributed as dist

    if dist.get_rank():
        tries, last = _asked(job, choices, given, most)
        return tries, last, all_of(probe, probed, given)
    index = torch.zeros(1, dtype=torch.int64)
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
        return _measured(job, choices[at % len(choices)], given)

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
    if at is not None:
        run(at + len(choices))
    index.fill_(-1)
    dist.broadcast(index, 0)
    all_of(probe, probed, given)
    return choice


def _asked(
    job: Callable[..., Measured], choices: list[Choice], given: Any, most: int
) -> tuple[list[tuple[int, Measured]], tuple[int, Measured] | None]:
    """On a rank where no answer is called: (what is tried, what is chosen), each by its place, with what it measures.

    Rank 0 names a place to try, that and the number of choices for the one that it takes, and -1 at the end.
    """
    import torch.distributed as dist

    tries: list[tuple[int, Measured]] = []
    last: tuple[int, Measured] | None = None
    index = torch.zeros(1, dtype=torch.int64)
    while True:
        dist.broadcast(index, 0)
        if index < 0:
            return tries, last
        taken, at = divmod(int(index), len(choices))
        found = _measured(job, choices[at], given)
        if not taken:
            tries.append((at, found))
        elif last is None:
            last = at, found
        else:
            raise Refused("the answer has more than one choice run as its last")
        if len(tries) > most:
            raise Refused(f"the answer has more than {most} choices run")
