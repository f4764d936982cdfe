"""Which collectives change how a matrix is cut and summed, with the fewest bytes."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from functools import cache

from dtcourse.course.judging import Answer, Exercise, call_each, require
from dtcourse.course.judging.verdicts import NEAR

CHOOSE = Exercise(
    "choose_collectives",
    lesson="03",
    title="Which collective does this technique need?",
    takes=("choose_collectives",),
    target="at most 1.01 times the fewest bytes, on 14 changes",
)

# the axis that cuts the rows, the columns, and the one that has summands
Marks = tuple[str, str, str]
Change = tuple[str, Marks, Marks, tuple[tuple[str, int], ...]]
ONE = (("x", 8),)
TWO, WIDE = (("x", 4), ("y", 2)), (("x", 2), ("y", 8))
SINGLE: tuple[Change, ...] = (
    ("FSDP before a layer", ("x", "", ""), ("", "", ""), ONE),
    ("DDP's gradients", ("", "", "x"), ("", "", ""), ONE),
    ("ZeRO-2's gradients", ("", "", "x"), ("x", "", ""), ONE),
    ("Ulysses attention", ("x", "", ""), ("", "x", ""), ONE),
    ("a tensor-parallel layer's output", ("y", "", "x"), ("y", "", ""), TWO),
    ("sequence parallelism after a layer", ("", "", "x"), ("", "x", ""), ONE),
    ("weights that all have, cut", ("", "", ""), ("", "x", ""), ONE),
)
SEVERAL: tuple[Change, ...] = (
    ("gradients over x, wanted in parts of y", ("", "", "x"), ("y", "", ""), TWO),
    ("a part of a sum, wanted whole", ("x", "", "y"), ("", "", ""), TWO),
    ("cut both ways, wanted whole", ("x", "y", ""), ("", "", ""), TWO),
    ("parts of x, wanted in parts of y", ("x", "", ""), ("y", "", ""), TWO),
    ("rows and columns change places", ("x", "y", ""), ("y", "x", ""), TWO),
    ("the same on other axes", ("x", "y", ""), ("y", "x", ""), WIDE),
    ("a part of a sum, wanted cut the other way", ("x", "", "y"), ("", "x", ""), WIDE),
)


def part(marks: Marks, sizes: dict[str, int]) -> float:
    """The part of the matrix that a rank holds."""
    return 1 / sizes.get(marks[0], 1) / sizes.get(marks[1], 1)


def steps(marks: Marks, sizes: dict[str, int]) -> Iterator[tuple[str, Marks, float]]:
    """(collective, marks after it, what each rank sends, as a part of the matrix) of everything that can be done."""
    summed = marks[2]
    holds = part(marks, sizes)

    def changed(place: int, mark: str, base: Marks = marks) -> Marks:
        return (mark, base[1], base[2]) if place == 0 else (base[0], mark, base[2])

    if summed:
        p = sizes[summed]
        whole = (marks[0], marks[1], "")
        yield "all_reduce", whole, 2 * (p - 1) / p * holds
        for place in (0, 1):
            if not marks[place]:
                yield "reduce_scatter", changed(place, summed, whole), (p - 1) / p * holds
    for place in (0, 1):
        axis = marks[place]
        if axis:
            p = sizes[axis]
            without = changed(place, "")
            yield "all_gather", without, (p - 1) / p * part(without, sizes)
            if not marks[1 - place]:
                yield "all_to_all", changed(1 - place, axis, without), (p - 1) / p * holds
        else:
            for free in sizes:
                if free not in marks:
                    yield "slice", changed(place, free), 0.0


@cache
def fewest(before: Marks, after: Marks, sizes: tuple[tuple[str, int], ...]) -> float:
    """The least that each rank sends, as a part of the matrix, over all ways from before to after."""
    waiting, seen = [(0.0, before)], set()
    while waiting:
        sent, marks = heapq.heappop(waiting)
        if marks == after:
            return sent
        if marks not in seen:
            seen.add(marks)
            for _, there, more in steps(marks, dict(sizes)):
                heapq.heappush(waiting, (sent + more, there))
    raise ValueError(f"no way from {before} to {after}")


def written(marks: Marks) -> str:
    """As the lesson writes it."""
    rows, columns = (
        name + (f"_{axis}" if axis else "") for name, axis in zip("IJ", marks, strict=False)
    )
    return f"[{rows}, {columns}]" + (f"{{U_{marks[2]}}}" if marks[2] else "")


def _require(answer: Answer, changes: tuple[Change, ...], hint: str) -> None:
    given = [(before, after, dict(sizes)) for _, before, after, sizes in changes]
    plans = call_each(answer, given)
    for (name, before, after, sizes), plan in zip(changes, plans, strict=True):
        axes = ", ".join(f"{p} ranks on {a}" for a, p in sizes)
        where = f"{name}, {written(before)} → {written(after)}, with {axes}"
        require(
            isinstance(plan, (list, tuple))
            and all(isinstance(step, (list, tuple)) and len(step) == 2 for step in plan),
            f"{where}: a plan is a list of (collective, marks after it), such as [('all_gather', ('', '', ''))]; "
            f"got {plan!r}.",
        )
        marks, sent = before, 0.0
        for collective, there in plan:
            there = tuple(there)
            possible = {(one, then): more for one, then, more in steps(marks, dict(sizes))}
            require(
                (collective, there) in possible,
                f"{where}: {collective} cannot make {written(there) if len(there) == 3 else there!r} of "
                f"{written(marks)}. What does it do to the marks?",
            )
            sent += possible[collective, there]
            marks = there
        require(
            marks == after,
            f"{where}: the plan ends with {written(marks)}. Which mark is still to change?",
        )
        least = fewest(before, after, sizes)
        require(
            sent <= NEAR * least,
            f"{where}: each rank sends {sent:.4g} of the matrix; {least:.4g} is enough. {hint}",
        )


@CHOOSE.check("one collective each", points=3)
def check_single(answer: Answer) -> None:
    """Seven changes that one step makes."""
    _require(
        answer,
        SINGLE,
        "Which single collective makes this change, and does any message have to travel?",
    )


@CHOOSE.check("several, in the best order", points=4)
def check_several(answer: Answer) -> None:
    """Seven changes on two axes."""
    _require(
        answer,
        SEVERAL,
        "Can the tensor be made smaller before it is summed or moved, and grow last?",
    )
