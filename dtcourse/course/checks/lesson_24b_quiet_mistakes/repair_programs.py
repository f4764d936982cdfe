"""Eight broken programs, found and repaired: each is run on ranks, on inputs drawn anew, and held to its reference."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from dtcourse.course.checks.lesson_24b_quiet_mistakes.streams import drawn, stride
from dtcourse.course.judging import (
    Answer,
    CheckFailed,
    Each,
    Exercise,
    require,
    require_close,
)
from dtcourse.course.judging.framework import Stopped

REPAIR = Exercise(
    "repair_programs",
    lesson="24b",
    title="Eight broken programs",
    takes=("repaired",),
    target="8 of 8 programs equal to their references to 1e-9, on 2 to 4 ranks; 2 points each",
)

TIMEOUT = 6.0  # seconds; a right answer takes a fraction of one
TOLERANCE = 1e-9


def _call(repaired: Any, name: str, calls: Sequence[Sequence[Any]]) -> list[Any]:
    """In a rank: what the program of this name returns, for each of its calls."""
    programs = repaired()
    if not isinstance(programs, dict):
        raise CheckFailed(
            f"repaired() returns a {type(programs).__name__}; a dict is wanted, "
            '{"program_a": program_a, ...}, of the programs that you have repaired.'
        )
    if not callable(programs.get(name)):
        raise CheckFailed(f"{name} is not among those that you return yet.")
    return [programs[name](*own) for own in calls]


def _run(
    answer: Answer, name: str, given: Sequence[Sequence[Sequence[Any]]], ranks: int, hint: str
) -> list[list[Any]]:
    """By call and rank, what came back."""
    own = Each([[by_rank[rank] for by_rank in given] for rank in range(ranks)])
    try:
        run = answer.run(_call, ranks, name, own, timeout=TIMEOUT, backend="gloo")
    except Stopped as error:
        # The other programs are judged all the same.
        raise CheckFailed(f"{name} does not end on {ranks} ranks. {hint}\n{error}") from None
    return [[run[rank][i] for rank in range(ranks)] for i in range(len(given))]


def _close(name: str, rank: int, got: Any, right: torch.Tensor, hint: str, what: str = "") -> None:
    got = torch.as_tensor(got, dtype=torch.double) if isinstance(got, float) else got
    require(
        isinstance(got, torch.Tensor),
        f"{name} returns a {type(got).__name__} on rank {rank}{what}; see what it is to return. {hint}",
    )
    require_close(got, right, f"{name}, on rank {rank}{what}", TOLERANCE, hint)


@REPAIR.check("program_a", points=2)
def check_a(answer: Answer) -> None:
    """Means by name."""
    hint = "Which call of the other ranks does the second call of a rank meet, and what has each of them in it?"
    names = ["stem", "body", "neck", "head"]
    for ranks in (2, 3):
        mine = [{n: drawn(3) for n in names} for _ in range(ranks)]
        orders = [names[rank:] + names[:rank] for rank in range(ranks)]
        given = [[({n: one[n] for n in order},) for one, order in zip(mine, orders, strict=True)]]
        (got,) = _run(answer, "program_a", given, ranks, hint)
        for rank in range(ranks):
            require(
                isinstance(got[rank], dict) and set(got[rank]) == set(names),
                f"program_a returns {type(got[rank]).__name__} on rank {rank}; a dict of {', '.join(names)} is wanted.",
            )
            for n in names:
                right = torch.stack([one[n] for one in mine]).mean(0)
                _close("program_a", rank, got[rank][n], right, hint, f", {n}")


@REPAIR.check("program_b", points=2)
def check_b(answer: Answer) -> None:
    """A gradient over micro-batches."""
    hint = "How large is it beside the right one, and what else is there as many of?"
    for ranks, parts in ((2, 3), (3, 2)):
        w = drawn(4)
        batches = [[(drawn(5, 4), drawn(5)) for _ in range(parts)] for _ in range(ranks)]
        given = [[(w, own) for own in batches]]
        (got,) = _run(answer, "program_b", given, ranks, hint)
        x, y = (torch.cat([part[i] for own in batches for part in own]) for i in (0, 1))
        leaf = w.clone().requires_grad_()
        (right,) = torch.autograd.grad(F.mse_loss(x @ leaf, y), leaf)
        for rank in range(ranks):
            _close("program_b", rank, got[rank], right, hint)


@REPAIR.check("program_c", points=2)
def check_c(answer: Answer) -> None:
    """One number over unequal shares, one of them empty."""
    hint = "Which ranks come to the call, whatever share they have?"
    ranks = 3
    shares = [random.randint(3, 9) for _ in range(ranks)]
    shares[random.randrange(ranks)] = 0
    labels = [torch.randint(3, (n,)) for n in shares]
    guesses = [torch.randint(3, (n,)) for n in shares]
    given = [list(zip(labels, guesses, strict=True))]
    (got,) = _run(answer, "program_c", given, ranks, hint)
    right = (torch.cat(labels) == torch.cat(guesses)).double().mean()
    for rank in range(ranks):
        value = got[rank]
        require(
            isinstance(value, (int, float)) and not isinstance(value, bool),
            f"program_c returns {value!r} on rank {rank}, and a number is wanted. {hint}",
        )
        _close("program_c", rank, float(value), right, hint)


@REPAIR.check("program_d", points=2)
def check_d(answer: Answer) -> None:
    """Columns of a table of ranks."""
    hint = "Write the ranks down as the table: which of them stand in one column?"
    for ranks, columns in ((4, 2), (4, 1)):
        losses = [drawn(1) for _ in range(ranks)]
        given = [[(loss, columns) for loss in losses]]
        (got,) = _run(answer, "program_d", given, ranks, hint)
        for rank in range(ranks):
            column = losses[rank % columns :: columns]
            _close("program_d", rank, got[rank], torch.stack(column).mean(0), hint)


@REPAIR.check("program_e", points=2)
def check_e(answer: Answer) -> None:
    """The newest checkpoint of some of the ranks."""
    hint = "Whose number is `newest`: one among all ranks, or one among `members`?"
    ranks, members = 4, [1, 2, 3]
    given, rights = [], []
    for newest in members:
        steps = [torch.tensor([10 * (rank == newest) + rank]) for rank in range(ranks)]
        weights = [drawn(3) for _ in range(ranks)]
        given.append([(step, weight, members) for step, weight in zip(steps, weights, strict=True)])
        rights.append(weights[newest])
    for got, right in zip(_run(answer, "program_e", given, ranks, hint), rights, strict=True):
        require(
            got[0] is None, "program_e returns something on a rank that is none of the members."
        )
        for rank in members:
            _close("program_e", rank, got[rank], right, hint)


@REPAIR.check("program_f", points=2)
def check_f(answer: Answer) -> None:
    """Two streams."""
    ranks, seed = 3, random.randrange(1000)
    given = [[(s, 4)] * ranks for s in (seed, seed + 1, seed + 2, seed)]
    calls = _run(answer, "program_f", given, ranks, "Which of the two needs other ranks?")
    seen: dict[tuple[float, ...], tuple[int, int]] = {}
    for s, by_rank in zip((seed, seed + 1, seed + 2), calls, strict=False):
        right = torch.randn(4, generator=torch.Generator().manual_seed(s))
        for rank, pair in enumerate(by_rank):
            require(
                isinstance(pair, (list, tuple)) and len(pair) == 2,
                f"program_f returns {type(pair).__name__} on rank {rank}; (start, noise) is wanted.",
            )
            _close("program_f", rank, pair[0], right, "What are all ranks to share?", ", the start")
            key = tuple(pair[1].tolist())
            require(
                key not in seen,
                f"program_f: with seed {s}, rank {rank} has the noise that rank {seen.get(key, (0, 0))[1]} has with "
                f"seed {seen.get(key, (0, 0))[0]}. Which (seed, rank) may have one stream?",
            )
            require(key != tuple(right.tolist()), "program_f: the noise is the start itself.")
            seen[key] = (s, rank)
    for rank in range(ranks):
        require(
            torch.equal(calls[0][rank][1], calls[3][rank][1]),
            f"program_f: on rank {rank} the same seed gives another noise the second time. What is a run's seed for?",
        )
    if further := stride([pair[1] for pair in calls[0]], seed):
        own = [[(s, 4)] * ranks for s in (seed, seed + further)]
        first, later = _run(answer, "program_f", own, ranks, "Which of the two needs other ranks?")
        require(
            not any(torch.equal(first[a][1], later[b][1]) for a, b in ((0, 1), (1, 0))),
            f"program_f: ranks 0 and 1 have one noise, one with seed {seed}, the other with seed {seed + further}. "
            "Which (seed, rank) may have one stream?",
        )


@REPAIR.check("program_g", points=2)
def check_g(answer: Answer) -> None:
    """Samples over ranks and epochs."""
    hint = "Which samples does each rank read in each epoch, and what differs between two epochs?"
    ranks, total, epochs = 3, 24, 3
    given = [[(total, epochs, random.randrange(1000))] * ranks]
    (got,) = _run(answer, "program_g", given, ranks, hint)
    for rank, read in enumerate(got):
        right_shape = (
            isinstance(read, (list, tuple))
            and [len(e) if isinstance(e, (list, tuple)) else -1 for e in read]
            == [total // ranks] * epochs
        )
        require(
            right_shape,
            f"program_g is to return {epochs} lists of {total // ranks} samples on rank {rank}.",
        )
    for epoch in range(epochs):
        read = sorted(s for of_rank in got for s in of_rank[epoch])
        require(
            read == list(range(total)),
            f"program_g: in epoch {epoch} not every sample is read once by one rank. {hint}",
        )
    for epoch in range(1, epochs):
        require(
            got[0][epoch] != got[0][epoch - 1],
            f"program_g: epoch {epoch} has the order of epoch {epoch - 1}. {hint}",
        )
    require(
        any(read != sorted(read) for read in got[0]), "program_g: the samples are not shuffled."
    )


@REPAIR.check("program_h", points=2)
def check_h(answer: Answer) -> None:
    """A model whose head is new."""
    hint = "Which parameters has DDP seen when it was made?"
    for ranks in (2, 3):
        trunk, head = drawn(4, 3), drawn(2, 4)
        parts = [(drawn(5, 3), drawn(5, 2)) for _ in range(ranks)]
        given = [[(trunk, head, x, y) for x, y in parts]]
        (got,) = _run(answer, "program_h", given, ranks, hint)
        leaves = [trunk.clone().requires_grad_(), head.clone().requires_grad_()]
        x, y = (torch.cat([part[i] for part in parts]) for i in (0, 1))
        rights = torch.autograd.grad(F.mse_loss(x @ leaves[0].T @ leaves[1].T, y), leaves)
        for rank in range(ranks):
            require(
                isinstance(got[rank], (list, tuple)) and len(got[rank]) == 2,
                f"program_h returns {type(got[rank]).__name__} on rank {rank}; two gradients are wanted.",
            )
            for what, mine, right in zip(("trunk", "head"), got[rank], rights, strict=True):
                _close("program_h", rank, mine, right, hint, f", the {what}'s gradient")
