"""Bytes on each rank."""

from __future__ import annotations

import random
from typing import Any

from dtcourse.course.judging import Answer, Exercise, require
from dtcourse.plural import plural

BYTES = Exercise(
    "bytes_on_ranks",
    lesson="16",
    title="Bytes on each rank",
    takes=("bytes_on_ranks",),
    target="0 bytes off on every rank, at stages 0 to 3, for uneven sizes and any precision",
    forbidden=(
        "dtcourse.simulator",
        "dtcourse.sharding",
    ),
)

Case = tuple[list[int], int, int, int, int, int]


def _bytes(bytes_on_ranks: Any, cases: list[Case]) -> list[Any]:
    return [
        list(bytes_on_ranks(sizes, ranks, stage, weights=w, gradients=g, optimizer=o))
        for sizes, ranks, stage, w, g, o in cases
    ]


def _right_bytes(sizes: list[int], ranks: int, stage: int, w: int, g: int, o: int) -> list[int]:
    own = _shares(sizes, ranks)
    if stage == 3:
        own = [-(-sum(sizes) // ranks)] * ranks
    n = sum(sizes)
    return [
        w * (mine if stage == 3 else n)
        + g * (mine if stage >= 2 else n)
        + o * (mine if stage >= 1 else n)
        for mine in own
    ]


def _shares(sizes: list[int], ranks: int) -> list[int]:
    own = [0] * ranks
    for size in sorted(sizes, reverse=True):
        own[own.index(min(own))] += size
    return own


def _compare_bytes(answer: Answer, cases: list[Case], hint: str) -> None:
    for case, got in zip(cases, answer.call(_bytes, cases), strict=True):
        sizes, ranks, stage, *each = case
        right = _right_bytes(*case)
        require(
            got == right,
            f"Parameters of {sizes} elements on {plural(ranks, 'rank')}, stage {stage}, {each} bytes an element "
            f"(weight, gradient, optimizer): you say {got}, and it is {right}. {hint}",
        )


@BYTES.check("equal sizes that divide evenly: the paper's formula", points=2)
def check_even(answer: Answer) -> None:
    """All stages, mixed precision and float32."""
    cases = [
        ([12 * k] * ranks, ranks, stage, *each)
        for stage in (0, 1, 2, 3)
        for ranks, k in ((4, random.randint(1, 9)), (2, random.randint(1, 9)))
        for each in ((2, 2, 12), (4, 4, 8))
    ]
    _compare_bytes(answer, cases, "Which of the three does this stage shard, and which are whole?")


@BYTES.check("whole parameters of uneven sizes, dealt out", points=2)
def check_dealt_out(answer: Answer) -> None:
    """The order of dealing matters."""
    cases: list[Case] = [([3, 9, 4, 8, 5, 7], 2, 1, 2, 2, 12), ([1, 6], 4, 2, 4, 4, 8)]
    for stage in (1, 2):
        for _ in range(4):
            sizes = [random.randint(1, 40) for _ in range(random.randint(2, 9))]
            cases.append((sizes, random.randint(2, 5), stage, 2, 2, 12))
    _compare_bytes(
        answer,
        cases,
        "In what order are the parameters dealt out, and who gets the "
        "next one? A rank's bytes are those of its own ones.",
    )


@BYTES.check("flats that the number of ranks does not divide: padding", points=2)
def check_padding(answer: Answer) -> None:
    """A part of the padding lies on a rank."""
    cases: list[Case] = [([7], 2, 3, 2, 2, 12), ([5, 6], 4, 3, 4, 4, 8), ([2], 4, 3, 2, 2, 12)]
    cases += [([random.randint(1, 99), 100], 3, 3, 2, 2, 12) for _ in range(3)]
    _compare_bytes(
        answer,
        cases,
        "All parts are of one size, or no single all-gather could fetch them. What is it?",
    )
