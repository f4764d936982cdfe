"""SCAFFOLD whose clients send one vector: what the server can work out from it need not travel."""

from __future__ import annotations

import random
from collections.abc import Sequence
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

UP = Exercise(
    "one_up",
    lesson="28",
    title="SCAFFOLD with one vector up",
    takes=("one_up",),
    target="equal to one process to 1e-10 with 1, 2 and 4 clients; 2 n numbers down and n up per visit; two messages' "
    "time per round",
    forbidden=("dtcourse.federated",),
)

N, ROUNDS, LR = 30, 6, 0.1
Problem = tuple[Tensor, Tensor]  # a, b of a client's gradient a y - b, number by number
# The start; by rank its problem, rank 0 has none; who is drawn in each round; steps of each rank.
Job = tuple[Tensor, list[Problem | None], list[list[int]], list[int]]


def _one_up(
    one_up: Any, problem: Problem | None, x: Tensor, drawn: list[list[int]], steps: list[int]
) -> Any:
    """In a rank: what it returns. x is zero where the client is to be told of it."""

    def gradient(y: Tensor) -> Tensor:
        assert problem is not None
        return problem[0] * y - problem[1]

    asked = None if problem is None else gradient
    return one_up(asked, x.clone(), [list(S) for S in drawn], list(steps), LR)


def _seconds(
    one_up: Any, problem: Problem | None, x: Tensor, drawn: list[list[int]], steps: list[int]
) -> float:
    """On a network whose messages take one second each, and nothing else any time."""
    from dtcourse import emulation

    _one_up(one_up, problem, x, drawn, steps)
    return emulation.now()


def job(ranks: int) -> Job:
    """Every client is drawn at least once. Of several the first round does not draw all, and not all rounds as many."""
    others = range(1, ranks)
    while True:
        drawn = [sorted(random.sample(others, random.randint(1, ranks - 1))) for _ in range(ROUNDS)]
        everyone, sizes = {k for S in drawn for k in S}, {len(S) for S in drawn}
        several = len(sizes) > 1 and len(drawn[0]) < ranks - 1
        if len(everyone) == ranks - 1 and (several or ranks == 2):
            break
    problems = [
        (0.5 + 1.5 * torch.rand(N, dtype=torch.double), torch.randn(N, dtype=torch.double) + rank)
        for rank in others
    ]
    steps = [0, *random.sample(range(2, 7), ranks - 1)]
    return torch.randn(N, dtype=torch.double), [None, *problems], drawn, steps


def alone(
    work: Job, *, corrected: bool = True, told: bool = True, over_drawn: bool = False
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """One process: x, c, and each rank's own variate.

    corrected=False: FedAvg's steps. told=False: the steps of a round are left out of a variate. over_drawn: c moves by
    the mean of those drawn
    """
    x, problems, drawn, steps = work
    c, own = torch.zeros(N, dtype=torch.double), [torch.zeros(N, dtype=torch.double) for _ in steps]
    for S in drawn:
        ends, moved = [], torch.zeros_like(c)
        for k in S:
            a, b = problems[k] or (x, x)
            y = x.clone()
            for _ in range(steps[k]):
                y = y - LR * (a * y - b + (c - own[k] if corrected else 0.0))
            after = own[k] - c + (x - y) / (LR * (steps[k] if told else 1))
            moved, own[k] = moved + after - own[k], after
            ends.append(y)
        x, c = torch.stack(ends).mean(0), c + moved / (len(S) if over_drawn else len(steps) - 1)
    return x, c, own


def _run(answer: Answer, ranks: int, work: Job, step: Any = _one_up, **how: Any) -> Any:
    x, problems, drawn, steps = work
    starts: Sequence[Tensor] = [x, *[torch.zeros_like(x)] * (ranks - 1)]
    return answer.run(
        step, ranks, Each(problems), Each(starts), drawn, steps, backend="ring", timeout=8.0, **how
    )


@UP.check("what one process computes", points=4)
def check_values(answer: Answer) -> None:
    """x and c at the server, c_k at each client."""
    for ranks in (2, 3, 5):
        work = job(ranks)
        run = _run(answer, ranks, work)
        x, c, own = alone(work)
        others = (
            (alone(work, corrected=False), "No client is corrected there. By what, in each step?"),
            (
                alone(work, told=False),
                "A variate is the mean gradient of a client's steps. How many has it taken?",
            ),
            (
                alone(work, over_drawn=True),
                "c is the mean over all clients' variates, those of clients that stay away too. How far does it "
                "move, if some of them change?",
            ),
        )
        found = run[0]
        require(
            isinstance(found, (tuple, list)) and len(found) == 2,
            f"Rank 0 returns two things, x and c; got {type(found).__name__}.",
        )
        for at, (name, right) in enumerate((("x", x), ("c", c))):
            hint = (
                "What does a client's step subtract, and what does the server add up after a round?"
            )
            for other, words in others:
                out, wrong = found[at], other[at]
                same = isinstance(out, Tensor) and out.shape == right.shape
                assert isinstance(wrong, Tensor)
                if (
                    same
                    and not torch.allclose(wrong, right)
                    and torch.allclose(out.double(), wrong)
                ):
                    hint = words
            where = f"With {plural(ranks - 1, 'client')}, {name} at the server"
            require_close(found[at], right, where, 1e-10, hint)
        for rank in range(1, ranks):
            where = f"With {plural(ranks - 1, 'client')}, the variate of client {rank}"
            hint = "What is the mean gradient of its steps, and which c did the server tell it in that round?"
            require_close(run[rank], own[rank], where, 1e-10, hint)


@UP.check("two vectors down, one up", points=4, needs=("check_values",))
def check_bytes(answer: Answer) -> None:
    """Between the server and each client."""
    for ranks in (2, 3, 5):
        work = job(ranks)
        run = _run(answer, ranks, work, record=True)
        for rank in range(ranks):
            for other in range(ranks):
                visits = sum((other or rank) in S for S in work[2]) if not rank * other else 0
                most = 8 * N * visits * (1 if rank else 2)
                sent = run.traffic.bytes_sent(rank, peer=other)
                who = "the server" if not other else f"client {other}"
                require(
                    rank == other or sent <= most,
                    f"With {plural(ranks - 1, 'client')}, {f'client {rank}' if rank else 'the server'} sends "
                    f"{sent:,} bytes to {who}; {plural(visits, 'visit')} take {most:,}. What can be worked out where "
                    "it arrives, and who is not asked at all?",
                )
        # What a client has come to, only that client knows; and x and c come from the server.
        for rank in range(1, ranks):
            where = f"With {plural(ranks - 1, 'client')}, the server"
            require_received(where, run.traffic.bytes_received(0, peer=rank), 8 * N)
            where = f"With {plural(ranks - 1, 'client')}, client {rank}"
            require_received(where, run.traffic.bytes_received(rank, peer=0), 8 * N)


@UP.check("all clients of a round at once", points=2, needs=("check_values",))
def check_rounds(answer: Answer) -> None:
    """On an emulated network where a message takes one second, and a port carries any number at once."""
    for ranks in (2, 3, 5):
        network = EmulatedNetwork(latency=1.0)
        run = _run(answer, ranks, job(ranks), _seconds, network=network, clock="virtual")
        passed = round(max(run))
        require(
            passed <= 2 * ROUNDS,
            f"With {plural(ranks - 1, 'client')}, {ROUNDS} rounds take {plural(passed, 'second')}, at one second per "
            "message. Which clients of a round need not wait for each other?",
        )
