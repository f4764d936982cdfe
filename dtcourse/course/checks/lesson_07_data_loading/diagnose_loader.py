"""Records of what ranks read: which loader is broken, and how."""

from __future__ import annotations

import random
from functools import cache

from dtcourse.course.judging import Answer, Exercise, require_diagnoses

DIAGNOSE = Exercise(
    "diagnose_loader",
    lesson="07",
    title="Which loader is broken, and how?",
    takes=("diagnose_loader",),
    target="15 of 15 records, of 3 to 5 ranks",
)

Diagnosis = tuple[str, int | None]
Reads = list[list[list[tuple[int, int]]]]  # by epoch and rank: (sample, angle)
# Ranks, samples, how the end is made even; the rank and the epoch of a mistake.
SIZES = ((3, 31, "exact", 1, 1), (4, 42, "repeat", 3, 2), (5, 43, "drop", 0, 3))
EPOCHS = 4


def recorded(kind: str, size: tuple[int, int, str, int, int]) -> Reads:
    """What a loader with one mistake gives: samples of each rank, each with the angle by which the rank turned it."""
    ranks, total, end, odd, since = size
    # A seed with which each epoch alone shows whose order is its own.
    chance = random.Random(f"{kind} {ranks} 9")
    orders: list[list[int]] = []
    reads: Reads = []
    for epoch in range(EPOCHS):
        order = chance.sample(range(total), total)
        if kind == "same order" and epoch >= since:
            order = orders[-1]
        orders.append(order)
        parts: list[list[tuple[int, int]]] = []
        for rank in range(ranks):
            own = order
            if kind == "own order" and rank == odd:
                own = chance.sample(range(total), total)
            if end == "repeat":
                own = own + own[: -total % ranks]
            elif end == "drop":
                own = own[: total // ranks * ranks]
            part = order if kind == "everything" else own[rank::ranks]
            angles = [chance.randint(-15, 15) for _ in part]
            if kind == "same angles" and rank > 0:
                angles = [angle for _, angle in parts[0]][: len(part)]
            parts.append(list(zip(part, angles, strict=True)))
        reads.append(parts)
    return reads


@cache
def cases() -> dict[str, list[tuple[tuple[int, Reads], Diagnosis]]]:
    """Three records of each kind, always the same ones."""
    return {
        kind: [
            ((size[1], recorded(kind, size)), (kind, {"own order": size[3], "same order": size[4]}.get(kind)))
            for size in SIZES
        ]
        for kind in ("healthy", "same order", "everything", "own order", "same angles")
    }  # fmt: skip


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_diagnoses(
        answer,
        cases()[kind] + cases()["healthy"],
        describe=lambda total, reads: f"A record of {total} samples on {len(reads[0])} ranks",
        hint=hint,
        healthy="Fewer samples than there are ranks may be read twice, or left out, or be one rank's last: parts of "
        "equal length, or each sample once, cannot be had otherwise.",
        example=("own order", 2),
    )


@DIAGNOSE.check("an epoch in the order of the one before", points=2)
def check_order(answer: Answer) -> None:
    """From some epoch on."""
    _require(
        answer,
        "same order",
        "Compare each epoch with the one before it: from which epoch on is the order an old one?",
    )


@DIAGNOSE.check("each rank reads everything", points=1)
def check_everything(answer: Answer) -> None:
    """No sampler."""
    _require(answer, "everything", "How many samples does one rank read in an epoch?")


@DIAGNOSE.check("a rank with an order of its own", points=3)
def check_own(answer: Answer) -> None:
    """Its part overlaps with the others'."""
    _require(
        answer,
        "own order",
        "Which samples are read by two ranks, and which rank is one of the two nearly every time?",
    )


@DIAGNOSE.check("the same random numbers on all ranks", points=2)
def check_angles(answer: Answer) -> None:
    """Other samples, turned by the same angles."""
    _require(
        answer,
        "same angles",
        "Each rank reads its own samples. What do all ranks do to their first one, and to their second?",
    )
