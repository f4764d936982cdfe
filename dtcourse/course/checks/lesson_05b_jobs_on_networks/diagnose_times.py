"""Times of every pair of ranks: which part of the cluster is slow?"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, require_diagnoses
from dtcourse.plural import plural

DIAGNOSE = Exercise(
    "diagnose_times",
    lesson="05b",
    title="Which part is slow?",
    takes=("diagnose_times",),
    target="16 of 16 matrices of 8 to 16 ranks, each time off by up to 5%",
)

Diagnosis = tuple[str, Any]
Case = tuple[tuple[Tensor, int], Diagnosis]
# Nodes, ranks per node; microseconds inside a node and between nodes; how many times slower the slow part is; and which
# cable, rank and card it is.
SIZES: tuple[tuple[Any, ...], ...] = (
    (4, 2, 40.0, 300.0, 2.0, (0, 1), 5, 2),
    (3, 3, 25.0, 90.0, 1.6, (7, 2), 0, 1),
    (3, 4, 60.0, 800.0, 3.0, (4, 5), 11, 0),
    (4, 4, 30.0, 150.0, 1.5, (14, 3), 6, 3),
)
NOISE = 0.05


def times(size: tuple[Any, ...], kind: str, seed: int) -> Case:
    """The matrix with one slow part, and what is right."""
    nodes, g, inside, between, slower, cable, rank, card = size
    p = nodes * g
    node = torch.arange(p) // g
    crosses = node[:, None] != node[None, :]
    clean = torch.where(crosses, between, inside).double()
    one = torch.arange(p) == rank
    of_cable = torch.zeros(p, p, dtype=torch.bool)
    of_cable[cable] = True
    slow = {
        "healthy": torch.zeros(p, p, dtype=torch.bool),
        "cable": of_cable,
        "rank": one[:, None] | one[None, :],
        "card": crosses & ((node == card)[:, None] | (node == card)[None, :]),
    }[kind]  # fmt: skip
    make = torch.Generator().manual_seed(seed)
    noise = 1 + NOISE * (2 * torch.rand(p, p, generator=make, dtype=torch.double) - 1)
    found = 1e-6 * clean * torch.where(slow, slower, 1.0) * noise
    found.fill_diagonal_(0.0)
    which = {"healthy": None, "cable": cable, "rank": rank, "card": card}[kind]
    return (found, g), (kind, which)


@cache
def cases() -> dict[str, list[Case]]:
    """One matrix of each kind and size, always the same ones."""
    kinds = ("healthy", "cable", "rank", "card")
    return {
        kind: [times(size, kind, 10 * i + k) for i, size in enumerate(SIZES)]
        for k, kind in enumerate(kinds)
    }


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_diagnoses(
        answer,
        cases()["healthy"] + cases()[kind],
        describe=lambda matrix, g: f"A cluster of {plural(len(matrix), 'rank')}, {g} per node",
        hint=hint,
        healthy="A message to another node takes longer in a healthy cluster, too. Of which pairs are the times to be "
        "compared with each other? And how far apart are two that are off by 5% each?",
        example=("cable", (2, 5)),
    )


@DIAGNOSE.check("a cable", points=3)
def check_cable(answer: Answer) -> None:
    """One direction between two ranks."""
    _require(answer, "cable", "How many times are too long, of which pair, and in which direction?")


@DIAGNOSE.check("a rank", points=3)
def check_rank(answer: Answer) -> None:
    """Whatever it sends and receives."""
    _require(
        answer,
        "rank",
        "Which rank is part of every pair that is slow, inside its node and out of it?",
    )


@DIAGNOSE.check("a node's card", points=4)
def check_card(answer: Answer) -> None:
    """All that enters the node or leaves it, and nothing inside."""
    _require(
        answer,
        "card",
        "Half of the times between nodes can be slow, or more: what is a healthy one then? And what is as fast as "
        "ever inside the node?",
    )
