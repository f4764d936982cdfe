"""A step of a sharded parameter server on the workers' own ranks, with parts of unequal sizes."""

from __future__ import annotations

from collections.abc import Iterator
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
from dtcourse.plural import plural

PUSH = Exercise(
    "push_and_pull",
    lesson="09",
    title="Servers with unequal links",
    takes=("push_and_pull",),
    target="equal to one process to 1e-9 at 2, 3 and 4 ranks; N - n pushed and (p - 1) n answered by a rank that "
    "serves n",
    forbidden=("dtcourse.asynchronous",),
)

RATE = 0.3
# Numbers that each rank serves: another share for each, and ranks that serve none.
SIZES = ((5, 3), (2, 0, 9), (4, 1, 6, 3), (0, 12, 0, 0))


def _steps(push_and_pull: Any, cases: list[tuple[Tensor, Tensor, list[int]]]) -> Any:
    """In a rank: what each case of this number of ranks returns."""
    return [push_and_pull(own, known, list(sizes), RATE) for own, known, sizes in cases]


def _known(parameters: Tensor, sizes: list[int], rank: int) -> Tensor:
    """A rank knows its own part of the parameters only."""
    first, known = sum(sizes[:rank]), torch.full_like(parameters, torch.nan)
    known[first : first + sizes[rank]] = parameters[first : first + sizes[rank]]
    return known


def _runs(answer: Answer) -> Iterator[tuple[int, list[Any], Any]]:
    """(ranks, cases, run)."""
    for ranks in (2, 3, 4):
        cases = []
        for sizes in SIZES:
            if len(sizes) == ranks:
                drawn = torch.randn(ranks + 1, sum(sizes), dtype=torch.double)
                cases.append((list(drawn[1:]), drawn[0], list(sizes)))
        own = [
            [(g[rank], _known(parameters, sizes, rank), sizes) for g, parameters, sizes in cases]
            for rank in range(ranks)
        ]
        yield ranks, cases, answer.run(_steps, ranks, Each(own), backend="ring", record=True)


def _hint(out: Any, gradients: list[Tensor], parameters: Tensor, sizes: list[int]) -> str:
    """A question that leads out of this mistake, where it is a known one."""
    if isinstance(out, Tensor) and out.shape == parameters.shape:
        mean = sum(gradients) / len(gradients)
        wrong = {
            "That is a sum of gradients: what does a step take of several workers' gradients?": parameters
            - RATE * sum(gradients),
            "That is the mean gradient without the learning rate.": parameters - mean,
            "The step goes uphill.": parameters + RATE * mean,
            "Nothing was updated: what came back is what the servers had before.": parameters,
        }
        for said, other in wrong.items():
            if torch.allclose(out.double(), other, atol=1e-9):
                return said
        if out.isnan().any():
            return (
                "Some numbers are not a number: those of a part that this rank does not serve, and has not pulled "
                "from its server."
            )
    return "Whose part is where, how long is it, and does each server hear all workers?"


@PUSH.check("the parameters are one process's", points=5)
def check_parameters(answer: Answer) -> None:
    """On every rank, with parts of any size."""
    for ranks, cases, run in _runs(answer):
        for i, (gradients, parameters, sizes) in enumerate(cases):
            right = parameters - RATE * sum(gradients) / ranks
            for rank in range(ranks):
                out = run[rank][i]
                where = f"With {plural(ranks, 'rank')} that serve {sizes} numbers, what rank {rank} returns"
                require_close(out, right, where, 1e-9, _hint(out, gradients, parameters, sizes))


@PUSH.check("each rank sends what its share costs", points=3, needs=("check_parameters",))
def check_bytes(answer: Answer) -> None:
    """The parts of others once, its own part to the others."""
    for ranks, cases, run in _runs(answer):
        for rank in range(ranks):
            most = 8 * sum(
                sum(sizes) - sizes[rank] + (ranks - 1) * sizes[rank] for _, _, sizes in cases
            )
            sent = run.traffic.bytes_sent(rank=rank)
            shares = " and ".join(str(sizes) for _, _, sizes in cases)
            require(
                sent <= most,
                f"With {plural(ranks, 'rank')} that serve {shares} numbers, rank {rank} sends {sent:,} bytes, and "
                f"{most:,} are enough. "
                "Who needs which part of a gradient, and who needs the parameters of a part?",
            )
            # Of each parameter of its own the others' gradients, and those that it does not serve.
            least = 8 * sum(sum(sizes) for _, _, sizes in cases)
            where = f"With {plural(ranks, 'rank')} that serve {shares} numbers, rank {rank}"
            require_received(where, run.traffic.bytes_received(rank), least)
