"""Records of a server's rounds, drawn anew each time: which server is broken, and how."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, place, require_kind
from dtcourse.plural import plural

DIAGNOSE = Exercise(
    "diagnose_means",
    lesson="28",
    title="Which server is broken, and how?",
    takes=("diagnose_means",),
    target="32 of 32 runs, of 4 to 7 clients and 5 to 8 rounds, drawn anew each time, and shuffled",
)

Diagnosis = tuple[str, int | None]
Given = tuple[Tensor, Tensor, list[list[int]], list[int]]
Case = tuple[Given, Diagnosis]


def recorded(
    changes: Tensor, drawn: list[list[int]], samples: list[int], *, alike: bool = False,
    everyone: bool = False, lost: int | None = None, late: int | None = None,
) -> Tensor:  # fmt: skip
    """The server's model (T + 1, n) before the first round and after each.

    alike: clients count alike;  everyone: divided by the samples of all clients
    lost:  this client's change is not added, and its samples are counted
    late:  of this client, the change of its visit before is added; at its first visit nothing
    """
    models = [torch.randn(changes.shape[2], dtype=changes.dtype)]
    before = torch.zeros_like(changes[0])
    for sent, S in zip(changes, drawn, strict=True):
        weights = {k: 1 if alike else samples[k] for k in S}
        total = torch.zeros_like(models[0])
        for k in S:
            if k != lost:
                total = total + weights[k] * (before if k == late else sent)[k]
        before[S] = sent[S]
        models.append(models[-1] + total / (sum(samples) if everyone else sum(weights.values())))
    return torch.stack(models)


def rounds_of(num_clients: int, rounds: int, suspect: int) -> list[list[int]]:
    """Who is drawn: two clients at least, never all; the suspect three times or more, and once after a pause."""
    while True:
        drawn = [
            sorted(random.sample(range(num_clients), random.randint(2, num_clients - 1)))
            for _ in range(rounds)
        ]
        visits = [at for at, S in enumerate(drawn) if suspect in S]
        if len(visits) >= 3 and visits[-1] - visits[0] >= len(visits):
            return drawn


def drawn(kind: str, turn: int) -> Case:
    """A run of this kind, rounded as one in single precision is, and its diagnosis.

    turn: 0 to 3; the first client is at fault, and the last
    """
    num_clients, rounds, n = random.randint(4, 7), random.randint(5, 8), random.randint(8, 20)
    client = place(turn, 0, num_clients - 1)
    S, samples = rounds_of(num_clients, rounds, client), random.sample(range(20, 99), num_clients)
    changes = torch.zeros(rounds, num_clients, n, dtype=torch.double)
    for at, here in enumerate(S):
        changes[at, here] = torch.randn(len(here), n, dtype=torch.double)
    ways: dict[str, tuple[int | None, dict[str, Any]]] = {
        "healthy": (None, {}),
        "alike": (None, {"alike": True}),
        "all samples": (None, {"everyone": True}),
        "lost": (client, {"lost": client}),
        "late": (client, {"late": client}),
    }
    where, options = ways[kind]
    models = recorded(changes, S, samples, **options)
    return (models.float().double(), changes.float().double(), S, samples), (kind, where)


def _described(_models: Tensor, changes: Tensor, *_who: Any) -> str:
    rounds, clients, _ = changes.shape
    return f"A run of {plural(clients, 'client')} and {plural(rounds, 'round')}"


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_kind(
        answer,
        kind,
        hint,
        drawn=drawn,
        each=4,
        describe=_described,
        healthy="What does a right server make of these changes, and how far apart are two records of which one is "
        "rounded to single precision?",
        example=("lost", 2),
    )


@DIAGNOSE.check("clients that count alike", points=2)
def check_alike(answer: Answer) -> None:
    """Nobody is at fault but the server."""
    _require(
        answer, "alike", "By how much does each client's change move x, and by how much should it?"
    )


@DIAGNOSE.check("samples of clients that were not there", points=2)
def check_all_samples(answer: Answer) -> None:
    """x moves the right way, and too short."""
    _require(
        answer,
        "all samples",
        "x moves along the right mean in each round. How far along it, and does that go with who was drawn?",
    )


@DIAGNOSE.check("a change that is lost", points=3)
def check_lost(answer: Answer) -> None:
    """Its samples are counted."""
    _require(
        answer,
        "lost",
        "What is missing from x after a round, in rounds that have this client and in those that do not?",
    )


@DIAGNOSE.check("a change that comes a visit late", points=3)
def check_late(answer: Answer) -> None:
    """Its first visit looks as if it were lost."""
    _require(
        answer,
        "late",
        "At a first visit nothing comes of this client's change. At the second, whose change is it that x moves by?",
    )
