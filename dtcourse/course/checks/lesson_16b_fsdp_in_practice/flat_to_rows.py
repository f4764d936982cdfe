"""From FullyShardedDataParallel's layout to fully_shard's, each element sent once at most."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from dtcourse.course.judging import Answer, Each, Exercise, require, require_close
from dtcourse.plural import plural

ROWS_OF_FLAT = Exercise(
    "flat_to_rows",
    lesson="16b",
    title="From flat parts to rows",
    takes=("flat_to_rows",),
    target="the right rows on 1 to 4 ranks; a rank sends what others need of its part, once; at most twice its old and "
    "new part in memory besides",
    forbidden=(
        "torch.distributed.fsdp",
        "torch.distributed.tensor",
        "torch.distributed.checkpoint",
        "dtcourse.sharding",
        "dtcourse.checkpoint",
    ),
)

Shapes = list[tuple[int, ...]]
# Ranks, and a unit's shapes: rows that divide and rows that do not, ranks without a row, padding that fills a part.
CASES: tuple[tuple[int, Shapes], ...] = (
    (2, [(4, 3), (4,), (6, 2)]),
    (3, [(7, 2), (7,), (5, 3, 2)]),
    (4, [(5, 7), (5,), (2, 9)]),
    (4, [(3,), (2,)]),
    (1, [(3, 2), (4,)]),
)


def _move(flat_to_rows: Any, own: torch.Tensor, shapes: Shapes) -> tuple[list[torch.Tensor], int]:
    """This rank's rows, and the most bytes that were alive beside its part."""
    from dtcourse.profiling.memory_tracker import MemoryTracker

    part = own.clone()
    with MemoryTracker(inputs=[part]) as tracker:
        got = flat_to_rows(part, shapes)
    return [g.detach().clone() for g in got], int(tracker.peak.bytes) - part.nbytes


def _run(answer: Answer, ranks: int, shapes: Shapes, **more: Any) -> tuple[Any, torch.Tensor]:
    flat = torch.randn(sum(map(prod, shapes)))
    padded = torch.nn.functional.pad(flat, (0, -len(flat) % ranks))
    own = Each([part.clone() for part in padded.chunk(ranks)])
    return answer.run(_move, ranks, own, shapes, **more), flat


def rows_of(flat: torch.Tensor, shapes: Shapes, ranks: int, rank: int) -> list[torch.Tensor]:
    """What a rank is to hold."""
    found = []
    for whole, shape in zip(flat.split([prod(s) for s in shapes]), shapes, strict=True):
        each = -(-shape[0] // ranks)
        found.append(whole.view(shape)[rank * each : (rank + 1) * each])
    return found


def sent_by(shapes: Shapes, ranks: int, rank: int) -> int:
    """Elements of this rank's flat part that are in another rank's rows."""
    number = torch.arange(sum(map(prod, shapes)))
    part = -(-len(number) // ranks)
    needed = [
        torch.cat([rows.flatten() for rows in rows_of(number, shapes, ranks, other)])
        for other in range(ranks)
        if other != rank
    ]
    return sum(int((numbers // part == rank).sum()) for numbers in needed)


def _where(ranks: int, shapes: Shapes) -> str:
    return f"Tensors of shapes {', '.join(map(str, shapes))} on {plural(ranks, 'rank')}"


@ROWS_OF_FLAT.check("each rank's rows", points=4, needs=("check_moved_traffic",))
def check_moved_rows(answer: Answer) -> None:
    """Rows that the number of ranks divides and rows that it does not, ranks without rows."""
    for ranks, shapes in CASES:
        run, flat = _run(answer, ranks, shapes)
        for rank in range(ranks):
            right = rows_of(flat, shapes, ranks, rank)
            got = run[rank][0]
            require(
                [tuple(g.shape) for g in got] == [tuple(r.shape) for r in right],
                f"{_where(ranks, shapes)}: rank {rank} holds rows of shapes {[tuple(r.shape) for r in right]}; you "
                f"return {[tuple(g.shape) for g in got]}. How many rows has each rank, and the last ones?",
            )
            for i, (mine, expected) in enumerate(zip(got, right, strict=True)):
                require_close(
                    mine,
                    expected,
                    f"{_where(ranks, shapes)}: rank {rank}'s rows of tensor {i}",
                    1e-7,
                    "Where do these rows lie in the flat vector, on which ranks are they, and in which order do they "
                    "arrive?",
                )


@ROWS_OF_FLAT.check("what others need, once", points=4, needs=("check_moved_rows",))
def check_moved_traffic(answer: Answer) -> None:
    """No padding, nothing that stays, nothing to ranks that do not need it."""
    for ranks, shapes in CASES[:4]:
        run, _ = _run(answer, ranks, shapes, backend="ring", record=True)
        for rank in range(ranks):
            sent, exact = run.traffic.bytes_sent(rank=rank), 4 * sent_by(shapes, ranks, rank)
            require(
                sent == exact,
                f"{_where(ranks, shapes)}: rank {rank} sends {sent:,} bytes; of its part others need {exact:,}. "
                "Which elements of its part does each other rank need, and who knows that without a message?",
            )


@ROWS_OF_FLAT.check("never the whole", points=2, needs=("check_moved_rows", "check_moved_traffic"))
def check_moved_memory(answer: Answer) -> None:
    """A unit that is much larger than a part of it."""
    ranks, shapes = 4, [(66, 64), (66,), (130, 64)]
    run, flat = _run(answer, ranks, shapes, backend="ring")
    for rank in range(ranks):
        part = 4 * -(-len(flat) // ranks)
        new = sum(r.nbytes for r in rows_of(flat, shapes, ranks, rank))
        most = 2 * (part + new)
        require(
            run[rank][1] <= most,
            f"Beside its part of {part:,} bytes rank {rank} holds {run[rank][1]:,} at one moment; twice its old and "
            f"new part together are {most:,}, and the whole unit is {flat.nbytes:,}. What does it keep that it neither "
            "has to send nor will hold?",
        )
