"""Each rank's calls of collectives, drawn anew each time: which rank's differ from the others', and how."""

from __future__ import annotations

import random

from dtcourse.course.judging import Answer, Exercise, call_each, require_diagnosis

DIAGNOSE = Exercise(
    "diagnose_calls",
    lesson="03",
    title="Which rank's calls differ?",
    takes=("diagnose_calls",),
    target="24 of 24 runs, of 3 to 6 ranks, drawn anew each time, and shuffled",
)

ROOT = 1  # of the broadcasts
RIGHT = (
    "All is right there: every rank makes the same calls in the same order. A line may be called again and again, "
    "and a root's calls have the line of its own branch."
)
OF_ROOT = f"Rank {ROOT} is the root of the broadcasts, and their lines are its own: are its other calls as the others'?"
Call = tuple[str, int, str]  # collective, elements, the line that called it
Run = list[list[Call]]
Diagnosis = tuple[str, int | None]


def drawn(kind: str, turn: int) -> tuple[Run, Diagnosis]:
    """A run of this kind, and its diagnosis.

    turn: 0 to 3: rank 0 differs, the root of the broadcasts, the last rank, any. In "another order" two calls of one
          shape change places in the first two turns, and else one of them and the call before or after both
    """
    ranks, calls = random.randint(3, 6), random.randint(6, 12)
    culprit = (0, ROOT, ranks - 1, random.randrange(ranks))[turn]
    # Two all-reduces of one number one after the other, as of a loss and a count; before and after them, other calls.
    names = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
    same: list[Call] = [
        (random.choice(names), random.choice((64, 256, 4096)), f"train.py:{40 + i % 4}")
        for i in range(calls - 2)
    ]
    # Always a broadcast, or the root's calls would be as the others'.
    same[random.randrange(len(same))] = ("broadcast", 256, "train.py:43")
    place = random.randrange(len(same) + 1)
    same[place:place] = [("all_reduce", 1, "train.py:51"), ("all_reduce", 1, "train.py:52")]
    run = [list(same) for _ in range(ranks)]
    # The root of a broadcast calls it from a line of its own.
    run[ROOT] = [(n, e, "train.py:60" if n == "broadcast" else line) for n, e, line in run[ROOT]]
    mine = run[culprit]
    if kind == "leaves one out":
        del mine[random.choice((place, len(mine) - 1))]
    elif kind == "another order":
        other = place + 1 if turn < 2 else (place - 1 if place else 2)
        at = place if turn < 2 or place else 1
        mine[at], mine[other] = mine[other], mine[at]
    elif kind == "another shape":
        at = random.choice([i for i in range(calls) if i not in (place, place + 1)])
        mine[at] = (mine[at][0], mine[at][1] - 1, mine[at][2])
    return run, (kind, None if kind == "healthy" else culprit)


def _require(answer: Answer, kind: str, hint: str) -> None:
    tried = [drawn(one, turn) for one in (kind, "healthy") for turn in range(4)]
    said = call_each(answer, [(run,) for run, _ in tried], shuffled=True)
    for (run, right), got in zip(tried, said, strict=True):
        # The root of the broadcasts is blamed for its line: it is right, and the sentence says why.
        blamed = isinstance(got, (list, tuple)) and tuple(got) == ("another order", ROOT)
        missed = right[1] == ROOT and got == ("healthy", None)
        require_diagnosis(
            f"A run of {len(run)} ranks",
            got,
            right,
            RIGHT if blamed else OF_ROOT if missed else hint,
            RIGHT,
            example=("another order", 2),
        )


@DIAGNOSE.check("a rank that leaves a call out", points=2)
def check_left_out(answer: Answer) -> None:
    """The others wait for ever."""
    _require(
        answer,
        "leaves one out",
        "How many calls does each rank make, and which number do most ranks have?",
    )


@DIAGNOSE.check("a rank with another order", points=3)
def check_order(answer: Answer) -> None:
    """Two all-reduces of one shape: wrong numbers in silence."""
    _require(
        answer,
        "another order",
        "Collective and shape are the same on all ranks there: what else is known of a call?",
    )


@DIAGNOSE.check("a rank with another shape", points=2)
def check_shape(answer: Answer) -> None:
    """One element less."""
    _require(answer, "another shape", "Is it the order, or the number of elements of one call?")
