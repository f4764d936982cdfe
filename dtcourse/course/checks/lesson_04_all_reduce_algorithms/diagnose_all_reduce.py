"""What ranks end with after an all-reduce, and who sent how much: which run is broken, and how."""

from __future__ import annotations

from functools import cache

from dtcourse.course.judging import Answer, Exercise, require_diagnoses
from dtcourse.plural import plural

DIAGNOSE = Exercise(
    "diagnose_all_reduce",
    lesson="04",
    title="Which all-reduce is broken, and how?",
    takes=("diagnose_all_reduce",),
    target="15 of 15 runs, of 3 to 6 ranks",
)

Diagnosis = tuple[str, int | None]
Case = tuple[tuple[list[list[int]], list[list[int]]], Diagnosis]


def _ring(
    ranks: int, steps: int, lost: int = -1, twice: tuple[int, int] = (-1, -1)
) -> tuple[list[list[int]], list[list[int]]]:
    """A ring all-reduce of one number per block, step by step: what each rank ends with,
    and elements sent from rank to rank.

    lost: a rank that passes partial sums on without its share. twice: (rank, block),
          where a rank adds its share once more.
    """
    ends = [[10**rank] * ranks for rank in range(ranks)]
    sent = [[0] * ranks for _ in range(ranks)]
    for step in range(steps):
        block = [(rank - step - 1) % ranks for rank in range(ranks)]
        moving = [ends[rank][block[rank]] for rank in range(ranks)]
        if step == 0 and lost >= 0:
            moving[lost] = 0
        for rank in range(ranks):
            to, b = (rank + 1) % ranks, block[rank]
            sent[rank][to] += 1
            if step >= ranks - 1:
                ends[to][b] = moving[rank]
                continue
            share = 0 if to == lost else 10**to
            ends[to][b] = moving[rank] + share * (2 if (to, b) == twice else 1)
    return ends, sent


def _through(root: int, ranks: int) -> tuple[list[list[int]], list[list[int]]]:
    """The right sums, all of them through one rank."""
    sent = [[0] * ranks for _ in range(ranks)]
    for rank in set(range(ranks)) - {root}:
        sent[rank][root] = sent[root][rank] = ranks
    return [[sum(10**rank for rank in range(ranks))] * ranks for _ in range(ranks)], sent


@cache
def cases() -> dict[str, list[Case]]:
    """Three runs of each kind, always the same ones."""
    found: dict[str, list[Case]] = {}
    for ranks, which in ((3, 0), (4, 2), (6, 5)):
        steps = 2 * (ranks - 1)
        found.setdefault("healthy", []).append((_ring(ranks, steps), ("healthy", None)))
        found.setdefault("step", []).append((_ring(ranks, steps - 1), ("a step too few", None)))
        found.setdefault("lost", []).append((_ring(ranks, steps, which), ("share lost", which)))
        twice = _ring(ranks, steps, twice=(which, (which + 1) % ranks))
        found.setdefault("twice", []).append((twice, ("added twice", which)))
        found.setdefault("root", []).append((_through(which, ranks), ("through a root", which)))
    return found


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_diagnoses(
        answer,
        cases()[kind] + cases()["healthy"],
        describe=lambda ends, sent: f"A run of {plural(len(sent), 'rank')} that ends with {ends}",
        hint=hint,
        healthy="Every share is in every sum once, and every rank sends as much: what would you mend?",
        example=("share lost", 2),
    )


@DIAGNOSE.check("a step too few", points=2)
def check_step(answer: Answer) -> None:
    """Each rank has one block without the share of its owner."""
    _require(answer, "step", "Is it the same rank's digit that is missing everywhere?")


@DIAGNOSE.check("a share that is lost", points=2)
def check_lost(answer: Answer) -> None:
    """A rank that passes on what it got."""
    _require(answer, "lost", "Whose digit is missing, and in how many of the blocks?")


@DIAGNOSE.check("a share that is in twice", points=2)
def check_twice(answer: Answer) -> None:
    """In one block alone."""
    _require(
        answer, "twice", "Which digit is more than 1, and in which of the blocks? Look at all."
    )


@DIAGNOSE.check("right, but through a root", points=2)
def check_root(answer: Answer) -> None:
    """The sums say nothing; the traffic does."""
    _require(answer, "root", "The sums are right. Who sends how much, and to whom?")
