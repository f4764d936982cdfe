"""A round of FedAvg where a rank knows only its own clients' samples: changes and weights travel in one sum."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import (
    Answer,
    Each,
    Exercise,
    require,
    require_close,
    require_received,
)
from dtcourse.emulation import EmulatedNetwork
from dtcourse.plural import plural

ROUND = Exercise(
    "round_in_one",
    lesson="28",
    title="A round in one sum",
    takes=("round_in_one",),
    target="equal to one process to 1e-12 at 2, 3 and 5 ranks; n + 1 numbers through one sum; 2 (p - 1) messages' "
    "time per round at most",
    forbidden=("dtcourse.federated",),
)

Come = list[
    tuple[int, Tensor]
]  # of a rank's clients that take part: samples, and where each has come to
N = 30


def _rounds(round_in_one: Any, x: Tensor, mine: list[Come]) -> list[Any]:
    """In a rank: its answer for each round, all of them from the same x."""
    return [round_in_one(x.clone(), [(n, y.clone()) for n, y in come]) for come in mine]


def _seconds(round_in_one: Any, x: Tensor, mine: list[Come]) -> float:
    """On a network whose messages take one second each, and nothing else any time."""
    from dtcourse import emulation

    _rounds(round_in_one, x, mine)
    return emulation.now()


def drawn(ranks: int, idle: int | None) -> list[Come]:
    """By rank, the clients of a round that live there: one to three, none on the rank that is idle.

    No rank's samples are as few as there are ranks: a mean over ranks is never one over its own samples by chance.
    """
    found: list[Come] = []
    for rank in range(ranks):
        size = 0 if rank == idle else random.randint(1, 3)
        samples = [random.randint(6, 14) + 40 * rank for _ in range(size)]
        found.append([(n, torch.randn(N, dtype=torch.double) + rank) for n in samples])
    random.shuffle(found)
    return found


def job(ranks: int) -> tuple[Tensor, list[list[Come]]]:
    """x, and by round, by rank, who has come: to all ranks, to all but one, and nobody at all."""
    x = torch.randn(N, dtype=torch.double)
    return x, [drawn(ranks, None), drawn(ranks, 0), [[] for _ in range(ranks)]]


def alone(x: Tensor, come: list[Come], alike: bool = False) -> Tensor:
    """One process. alike: each client counts as one."""
    everyone = [one for mine in come for one in mine]
    weights = [1 if alike else n for n, _ in everyone]
    changes = [w * (y - x) for w, (_, y) in zip(weights, everyone, strict=True)]
    return x + sum(changes, torch.zeros_like(x)) / max(1, sum(weights))


def means_of_ranks(x: Tensor, come: list[Come]) -> Tensor:
    """What comes of the mean of the ranks' own means."""
    return torch.stack([alone(x, [mine]) for mine in come]).mean(0)


def by_own(x: Tensor, come: list[Come], rank: int) -> Tensor:
    """What comes of the sum of all changes, divided by this rank's own samples."""
    samples = sum(n for mine in come for n, _ in mine)
    own = sum(n for n, _ in come[rank])
    return x + (alone(x, come) - x) * samples / max(1, own)


def _run(answer: Answer, ranks: int, x: Tensor, rounds: list[list[Come]], **how: Any) -> Any:
    mine = [[come[rank] for come in rounds] for rank in range(ranks)]
    return answer.run(
        how.pop("step", _rounds), ranks, x, Each(mine), backend="ring", timeout=8.0, **how
    )


@ROUND.check("the mean over all samples of the round", points=4)
def check_mean(answer: Answer) -> None:
    """On every rank, at 2, 3 and 5 ranks; a rank may have no client in a round."""
    for ranks in (2, 3, 5):
        x, rounds = job(ranks)
        run = _run(answer, ranks, x, rounds[:2])
        for at, come in enumerate(rounds[:2]):
            right = alone(x, come)
            for rank in range(ranks):
                out, hint = (
                    run[rank][at],
                    "What is added up over all ranks, and what is it divided by?",
                )
                others = (
                    (
                        alone(x, come, alike=True),
                        "Each client counts alike there. Whose change stands for more samples?",
                    ),
                    (
                        means_of_ranks(x, come),
                        "That is the mean of the ranks' means. How many samples stand behind each of them?",
                    ),
                    (
                        by_own(x, come, rank),
                        "That is divided by this rank's own samples. Who knows those of the others?",
                    ),
                )
                if isinstance(out, Tensor) and out.shape == right.shape:
                    for other, words in others:
                        if torch.allclose(out.double(), other, atol=1e-9):
                            hint = words
                            break
                idle = " (one of them without a client)" if at else ""
                where = f"With {plural(ranks, 'rank')}{idle}, the new x on rank {rank}"
                require_close(out, right, where, 1e-12, hint)


@ROUND.check("a round to which nobody comes", points=1, needs=("check_mean",))
def check_nobody(answer: Answer) -> None:
    """x stays as it is."""
    for ranks in (2, 3):
        x, rounds = job(ranks)
        run = _run(answer, ranks, x, rounds[2:])
        for rank in range(ranks):
            require_close(
                run[rank][0],
                x,
                f"With {plural(ranks, 'rank')} and no client, the new x on rank {rank}",
                1e-12,
                "Nobody has come, so nobody has changed anything. What is divided by what there?",
            )


@ROUND.check("a vector and its weight in one sum", points=3, needs=("check_mean",))
def check_bytes(answer: Answer) -> None:
    """Of all ranks together, as many as a ring's sum of them sends."""
    for ranks in (2, 3, 5):
        x, rounds = job(ranks)
        run = _run(answer, ranks, x, rounds, record=True)
        most, sent = len(rounds) * 2 * (ranks - 1) * 8 * (N + 1), run.traffic.bytes_sent()
        require(
            sent <= most,
            f"With {plural(ranks, 'rank')}, all ranks together send {sent:,} bytes in {len(rounds)} rounds; a sum of "
            f"{N + 1} numbers on all of them sends {most:,}. What may be added up before it travels?",
        )
        for rank in range(ranks):
            needs = sum(any(c for at, c in enumerate(come) if at != rank) for come in rounds)
            where = f"With {plural(ranks, 'rank')}, rank {rank}"
            require_received(where, run.traffic.bytes_received(rank), 8 * N * needs)


@ROUND.check("one sum, and not two", points=2, needs=("check_mean",))
def check_seconds(answer: Answer) -> None:
    """On an emulated network where a message takes one second."""
    for ranks in (2, 3, 5):
        x, rounds = job(ranks)
        network = EmulatedNetwork(latency=1.0)
        run = _run(answer, ranks, x, rounds, step=_seconds, network=network, clock="virtual")
        most, passed = len(rounds) * 2 * (ranks - 1), round(max(run))
        require(
            passed <= most,
            f"With {plural(ranks, 'rank')}, {len(rounds)} rounds take {plural(passed, 'second')}, at one second per "
            f"message; one sum per round takes {most}. What could travel with the changes?",
        )
