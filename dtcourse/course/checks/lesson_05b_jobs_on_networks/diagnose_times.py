"""Times of every pair of ranks, drawn anew each time: which part of the cluster is slow?"""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, place, require_kind
from dtcourse.plural import plural

DIAGNOSE = Exercise(
    "diagnose_times",
    lesson="05b",
    title="Which part is slow?",
    takes=("diagnose_times",),
    target="24 of 24 matrices of 8 to 16 ranks, each time off by up to 5%, drawn anew each time, and shuffled",
)

Diagnosis = tuple[str, Any]
Case = tuple[tuple[Tensor, int], Diagnosis]
SIZES = ((4, 2), (3, 3), (3, 4), (4, 4))  # nodes, ranks per node
NOISE = 0.05


def drawn(kind: str, turn: int) -> Case:
    """A matrix of this kind, and its diagnosis.

    turn: 0 to 3: the slow part is the first rank or card, the last one, any, any; a cable inside a node, then between
    """
    # Of three nodes, one slow card makes more than half of the times between nodes long.
    nodes, g = random.choice(SIZES if turn < 3 else SIZES[1:3])
    p = nodes * g
    inside = random.uniform(25.0, 60.0)  # microseconds
    between, slower = inside * random.uniform(3.0, 13.0), random.uniform(1.5, 3.0)
    rank, card = place(turn, 0, p - 1), place(turn, 0, nodes - 1)
    a = random.randrange(p)
    near = turn == 0 or (turn > 1 and random.random() < 0.5)
    cable = (a, random.choice([b for b in range(p) if b != a and (b // g == a // g) == near]))
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
    noise = 1 + NOISE * (2 * torch.rand(p, p, dtype=torch.double) - 1)
    found = 1e-6 * clean * torch.where(slow, slower, 1.0) * noise
    found.fill_diagonal_(0.0)
    which = {"healthy": None, "cable": cable, "rank": rank, "card": card}[kind]
    return (found, g), (kind, which)


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_kind(
        answer,
        kind,
        hint,
        drawn=drawn,
        each=4,
        describe=lambda matrix, g: f"A cluster of {plural(len(matrix), 'rank')}, {g} per node",
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
