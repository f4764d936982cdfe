"""The mean of sparse vectors: each rank adds a range of places for all."""

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

RANGES = Exercise(
    "mean_by_ranges",
    lesson="12",
    title="A mean of sparse vectors, by ranges",
    takes=("mean_by_ranges",),
    target="equal to one process to 1e-12 at 2, 3 and 4 ranks; 16 bytes for each pair to its owner, and back",
    forbidden=("dtcourse.compression",),
)

N, K = 1003, 120
KINDS = ("agreed", "different", "first range")


def _means(mean_by_ranges: Any, vectors: list[Tensor]) -> Any:
    """In a rank: its answer to each of its vectors."""
    return [mean_by_ranges(own.clone(), K) for own in vectors]


def _run(answer: Answer, ranks: int, batches: list[list[Tensor]]) -> Any:
    own = Each(list(zip(*batches, strict=True)))
    return answer.run(_means, ranks, own, backend="ring", record=True)


def _vectors(ranks: int, kind: str) -> list[Tensor]:
    """Each rank's vector. Large numbers lie at the same places, anywhere, or all in the first rank's range."""
    vectors = []
    same = torch.randperm(N)[:K]
    for _ in range(ranks):
        x = torch.randn(N, dtype=torch.double)
        if kind == "agreed":
            x[same] += 20 * x[same].sign()
        elif kind == "first range":
            x[: N // ranks] += 20 * x[: N // ranks].sign()
        vectors.append(x)
    return vectors


def _in_ranges(ranks: int, where: str) -> list[Tensor]:
    """Vectors of which all ranks choose the same places, as many in each range: inside it, at its two ends, or at
    multiples of the number of ranks, which are one rank's where places are dealt out in turn.
    """
    places, each = [], K // ranks
    for r in range(ranks):
        first, after = r * N // ranks, (r + 1) * N // ranks
        here = torch.arange(first + 20, first + 20 + each)
        if where == "multiples":
            begin = first + -first % ranks
            here = torch.arange(begin, begin + ranks * each, ranks)
        elif where == "ends":
            here = torch.cat(
                [
                    torch.arange(first, first + each // 2),
                    torch.arange(after - each + each // 2, after),
                ]
            )
        places.append(here)
    vectors = []
    for _ in range(ranks):
        x = torch.randn(N, dtype=torch.double)
        x[torch.cat(places)] += 20 * x[torch.cat(places)].sign()
        vectors.append(x)
    return vectors


def _places(x: Tensor, signed: bool = False) -> Tensor:
    return (x if signed else x.abs()).topk(K).indices


def _alone(vectors: list[Tensor], signed: bool = False) -> Tensor:
    """One process."""
    total = torch.zeros(N, dtype=torch.double)
    for x in vectors:
        places = _places(x, signed)
        total[places] += x[places]
    return total / len(vectors)


def _runs(answer: Answer, kinds: tuple[str, ...]) -> Iterator[tuple[int, list[list[Tensor]], Any]]:
    """(ranks, the vectors of each kind, run)."""
    for ranks in (2, 3, 4):
        batches = [_vectors(ranks, kind) for kind in kinds]
        yield ranks, batches, _run(answer, ranks, batches)


@RANGES.check("the mean is one process's", points=4)
def check_mean(answer: Answer) -> None:
    """On every rank, at 2, 3 and 4 ranks, in double precision."""
    for ranks, batches, run in _runs(answer, KINDS):
        for i, (kind, vectors) in enumerate(zip(KINDS, batches, strict=True)):
            right = _alone(vectors)
            for rank in range(ranks):
                out = run[rank][i]
                hint = "Whose numbers are at the places that differ, and were they added once?"
                if isinstance(out, Tensor) and out.shape == right.shape:
                    if torch.allclose(out.double(), ranks * right):
                        hint = "That is the sum: where is it divided by the ranks?"
                    elif torch.allclose(out.double(), _alone(vectors, signed=True)):
                        hint = "Those are the largest with their sign: what of large numbers below zero?"
                    elif torch.allclose(out.double(), torch.stack(vectors).mean(0)):
                        hint = "That is the mean of all numbers: which of them were to be chosen?"
                where = f"With {plural(ranks, 'rank')} ({kind}), the mean on rank {rank}"
                require_close(out, right, where, 1e-12, hint)


@RANGES.check("a pair travels to its owner, and a sum back", points=4, needs=("check_mean",))
def check_bytes(answer: Answer) -> None:
    """Counted. As many places in each range are as many bytes, wherever they lie in it; and where ranks chose the same
    places, a gather sends each p times.
    """
    for ranks in (3, 4):
        inside, ends, multiples = (
            _run(answer, ranks, [_in_ranges(ranks, where)])
            for where in ("inside", "ends", "multiples")
        )
        for rank in range(ranks):
            sent = [run.traffic.bytes_sent(rank=rank) for run in (inside, ends, multiples)]
            require(
                len(set(sent)) == 1,
                f"With {plural(ranks, 'rank')}, as many places are chosen in each range: inside the ranges, at their "
                f"ends, then at multiples of {ranks}. Rank {rank} sends {sent[0]:,} bytes, {sent[1]:,}, then "
                f"{sent[2]:,}. Is the first place of rank r's range r n // p, and its last one (r + 1) n // p - 1?",
            )
    for ranks, batches, run in _runs(answer, ("agreed",)):
        bounds = torch.tensor([r * N // ranks for r in range(1, ranks + 1)])
        for rank in range(ranks):
            pairs = 0
            for vectors in batches:
                chosen = [_places(x) for x in vectors]
                owner = torch.bucketize(chosen[rank], bounds, right=True)
                union = torch.cat(chosen).unique()
                sums = torch.bincount(torch.bucketize(union, bounds, right=True), minlength=ranks)
                pairs += int((owner != rank).sum()) + (ranks - 1) * int(sums.max())
            most = 16 * pairs + 64 * ranks * len(batches)
            sent = run.traffic.bytes_sent(rank=rank)
            require(
                sent <= most,
                f"With {plural(ranks, 'rank')}, rank {rank} sends {sent:,} bytes where {most:,} are enough. Ranks "
                "that chose the same place: how often does it travel to everyone? And does anything travel that "
                "nobody chose?",
            )
            # At each place that all have chosen, others' numbers are in the sum.
            where = f"With {plural(ranks, 'rank')}, rank {rank}"
            require_received(where, run.traffic.bytes_received(rank), 8 * K * len(batches))
