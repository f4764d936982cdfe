"""What each rank of a run does at one moment, drawn anew each time: does it hang, why, and who is to blame?"""

from __future__ import annotations

import random
from typing import Any

from dtcourse.course.judging import Answer, Exercise, require_kind

DIAGNOSE = Exercise(
    "diagnose_hang",
    lesson="02",
    title="Which run hangs, and why?",
    takes=("diagnose_hang",),
    target="24 of 24 runs, of 2 to 8 ranks, drawn anew each time, and shuffled",
)

State = tuple[str, int | None]
Diagnosis = tuple[str, Any]
RUNS, RETURNED = ("runs", None), ("returned", None)
RIGHT = (
    "All is right there: each rank that waits, waits for one that runs, or for one that is at the other end of the "
    "same message, or for one that waits for such a rank."
)
ENDS = ("send", "recv")


def drawn(kind: str, turn: int) -> tuple[tuple[list[State]], Diagnosis]:
    """A run of this kind, and its diagnosis: ranks that wait for each other, as a drawing, in any order.

    turn: 0 to 3: rank 0 is to blame, has nothing to do with it, waits for who is to blame, is any
    """
    states, blamed, free, waits = _DRAWINGS[kind](turn)
    ranks = list(range(len(states)))
    random.shuffle(ranks)
    # Whoever is to be rank 0 changes numbers with the one that has it.
    if zero := {0: blamed, 1: free, 2: waits}.get(turn):
        had = ranks.index(0)
        ranks[had], ranks[zero[0]] = ranks[zero[0]], 0
    found: list[State] = [RUNS] * len(states)
    for rank, (what, detail) in zip(ranks, states, strict=True):
        found[rank] = (
            (what, ranks[detail]) if what in ENDS and detail is not None else (what, detail)
        )
    which = tuple(sorted(ranks[place] for place in blamed))
    right = {"healthy": None, "left": which[0] if which else None}.get(kind, which)
    return (found,), (kind, right)


# States, and the places of those to blame, of those that have nothing to do with it, and of those that wait for it.
Drawing = tuple[list[State], list[int], list[int], list[int]]


def _waiting_for(states: list[State], places: list[int], count: int) -> list[int]:
    """Adds so many ranks that wait for one of these places, or for one another on the way there."""
    added: list[int] = []
    for _ in range(count):
        added.append(len(states))
        states.append((random.choice(ENDS), random.choice(places + added[:-1])))
    return added


def _others(states: list[State], kinds: tuple[State, ...]) -> list[int]:
    """Adds one or two ranks for which nobody waits."""
    count = random.randint(1, 2)
    states.extend(random.choice(kinds) for _ in range(count))
    return list(range(len(states) - count, len(states)))


def _healthy(turn: int) -> Drawing:
    """Ranks wait for one that runs; for two ends of one message; in new_group; for both of the first two."""
    states: list[State] = []
    if turn == 2:
        states += [("new_group", random.randint(1, 3))] * random.randint(2, 4)
        states += [RUNS] * random.randint(0, 2)
        return states, [], [], []
    if turn != 1:
        states.append(RUNS)
        _waiting_for(states, [0], random.randint(1, 3))
    if turn != 0:
        one, other = len(states), len(states) + 1
        states += [("send", other), ("recv", one)]
        _waiting_for(states, [one, other], random.randint(0, 1))
        states.append(RETURNED)
    return states, [], [], []


def _circle(turn: int) -> Drawing:
    """Two that send, two that receive, or three and more; others may wait for the circle, and are not on it."""
    length = (2, 2, 3, random.randint(3, 4))[turn]
    what = (["send"] * 2, ["recv"] * 2)[turn] if turn < 2 else random.choices(ENDS, k=length)
    states: list[State] = [(what[i], (i + 1) % length) for i in range(length)]
    circle = list(range(length))
    waits = _waiting_for(states, circle, random.randint(1, 2))
    return states, circle, _others(states, (RUNS, RETURNED)), waits


def _left(turn: int) -> Drawing:
    """Somebody waits for a rank that has returned, perhaps by way of others."""
    states: list[State] = [RETURNED]
    waits = _waiting_for(states, [0], 1)
    waits += _waiting_for(states, waits, turn)  # never for it at once
    return states, [0], _others(states, (RUNS, RETURNED)), waits[::-1]


def _names(turn: int) -> Drawing:
    """Some have called new_group less often than others, and perhaps not all are there."""
    number, behind = random.randint(1, 3), (1, 2, 2, random.randint(1, 3))[turn]
    further = random.randint(1, 3)
    states: list[State] = [("new_group", number)] * behind
    states += [("new_group", number + random.randint(1, 2))] * further + [RUNS] * (turn % 2)
    return states, list(range(behind)), list(range(behind, len(states))), []


_DRAWINGS = {"healthy": _healthy, "circle": _circle, "left": _left, "names": _names}


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_kind(
        answer,
        kind,
        hint,
        drawn=drawn,
        each=4,
        describe=lambda states: f"Ranks that are at {states}",
        healthy=RIGHT,
        example=("left", 3),
    )


@DIAGNOSE.check("a circle of waiting", points=3)
def check_circle(answer: Answer) -> None:
    """Others may wait for the circle, and are not on it; two ends of one message are none."""
    _require(
        answer,
        "circle",
        "Follow each rank to the one that it waits for, and on from there. Where do you come to a rank for the "
        "second time, and which ranks only wait for those?",
    )


@DIAGNOSE.check("a rank that left", points=3)
def check_left(answer: Answer) -> None:
    """It has returned, and somebody still waits for it."""
    _require(
        answer, "left", "Which ranks have returned, and does anybody wait for them, at the end of a chain perhaps?"
    )  # fmt: skip


@DIAGNOSE.check("ranks that skipped a new_group", points=2)
def check_names(answer: Answer) -> None:
    """They have counted fewer calls than the others."""
    _require(
        answer, "names", "Ranks count their calls of new_group. Who has counted the fewest, and who is not there yet?"
    )  # fmt: skip
