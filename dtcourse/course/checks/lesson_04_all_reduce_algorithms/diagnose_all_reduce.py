"""What ranks end with after an all-reduce, and who sent how much, drawn anew each time: what is broken?"""

from __future__ import annotations

import random

from dtcourse.course.judging import Answer, Exercise, require_diagnoses
from dtcourse.plural import plural

DIAGNOSE = Exercise(
    "diagnose_all_reduce",
    lesson="04",
    title="Which all-reduce is broken, and how?",
    takes=("diagnose_all_reduce",),
    target="32 of 32 runs, of 3 to 6 ranks, drawn anew each time",
)

EACH = 4  # runs of a kind, and as many healthy ones beside them
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


def drawn(kind: str, turn: int) -> Case:
    """A run with one thing wrong, and what that is.

    turn: 0 to 3; it says how many ranks there are, so that all numbers of ranks are tried. Only in the first may the
          rank or the block be number 0: an answer that looks there alone is not right by luck.
    """
    ranks = 3 + turn
    steps = 2 * (ranks - 1)
    which = random.randrange(min(turn, 1), ranks)
    if kind == "step":
        return _ring(ranks, steps - 1), ("a step too few", None)
    if kind == "lost":
        return _ring(ranks, steps, which), ("share lost", which)
    if kind == "twice":
        # A rank's first block is sent and never added to: the one before its own number.
        blocks = [b for b in range(min(turn, 1), ranks) if b != (which - 1) % ranks]
        return _ring(ranks, steps, twice=(which, random.choice(blocks))), ("added twice", which)
    if kind == "root":
        return _through(which, ranks), ("through a root", which)
    return _ring(ranks, steps), ("healthy", None)


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_diagnoses(
        answer,
        [drawn(one, turn) for one in (kind, "healthy") for turn in range(EACH)],
        describe=lambda ends, sent: f"A run of {plural(len(sent), 'rank')} that ends with {ends}",
        hint=hint,
        healthy="Every share is in every sum once, and every rank sends as much: what would you mend?",
        example=("share lost", 2),
        shuffled=True,
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
