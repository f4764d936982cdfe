"""The mean of all ranks' vectors, one bit for each number there and back, with what is left out sent later."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Each, Exercise, require, require_received
from dtcourse.course.judging.threads import one_thread
from dtcourse.plural import plural

MEAN = Exercise(
    "one_bit_mean",
    lesson="11b",
    title="One bit, there and back",
    takes=("OneBitMean",),
    target="one bit per number there and back; in 120 steps each block's mean is off by 10 % at most, on 2, 3, 4 ranks",
    forbidden=("dtcourse.compression", "dtcourse.course.compressed_replicas"),
)

SIZES = ((2, 1000, 64), (3, 700, 50), (4, 1111, 32))  # ranks, numbers, block
STEPS, OFF = 120, 0.1
SLACK = 64  # bytes


def _steps(make: Any, mine: Tensor, block: int) -> dict[str, Any]:
    """In a rank: what comes in each step, summed, the last one of them, and what is wrong with their form."""
    with one_thread():
        mean = make(mine.shape[1], block)
        total, out = torch.zeros(mine.shape[1], dtype=torch.double), mine[0]
        for step in range(STEPS):
            g = mine[step % len(mine)].clone()
            out = mean(g)
            if not isinstance(out, Tensor) or out.shape != g.shape:
                what = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
                return {"wrong": f"a mean is a vector of {len(g)} numbers; got {what}."}
            if not torch.equal(g, mine[step % len(mine)]):
                return {"wrong": "g itself was changed. It is the model's."}
            total += out
    return {"wrong": "", "mean": total / STEPS, "last": out.detach().clone()}


def gradients(p: int, n: int, block: int) -> Tensor:
    """(p, 4, n): of each rank, in four steps that come again and again. Their signs mostly point the wrong way, and
    blocks differ a thousandfold.
    """
    sizes = 10.0 ** (3 * torch.rand(-(-n // block)) - 2)
    sizes[0], sizes[-1] = 1e-2, 10.0
    each = torch.where(torch.rand(n) < 0.5, -1.0, 1.0)
    each = each * (0.5 + torch.rand(p, n)) * sizes.repeat_interleave(block)[:n]
    turns = torch.arange(4)[:, None] + torch.randint(4, (n,))
    return torch.where(turns % 4 == 0, 4.0, -1.0) * each[:, None]


def _runs(answer: Answer) -> Iterator[tuple[str, int, int, int, Tensor, Any]]:
    for p, n, block in SIZES:
        batches = gradients(p, n, block)
        run = answer.run(
            _steps,
            p,
            Each(list(batches)),
            block,
            backend="ring",
            record=True,
            timeout=60.0,
            device="cpu",
        )
        where = f"{plural(p, 'rank')}, {n} numbers in blocks of {block}"
        for rank in range(p):
            require(not run[rank]["wrong"], f"{where}: {run[rank]['wrong']}")
        yield where, p, n, block, batches, run


def _hint(off: Tensor, sizes: Tensor, summed: bool) -> str:
    """off, sizes (blocks,): how far each block's mean is off, and how large its numbers are.

    summed: it is p times the mean
    """
    if summed:
        return "It is too large: how many vectors are in the sum?"
    wrong = off > OFF
    if wrong.sum() <= 2 and wrong[-1]:
        return "The others are right. How many numbers does the last block have, and which part is it in?"
    # Of one scale some block of small numbers suffers most, and those of large ones may be off by more than the limit.
    by_size, third = off[sizes.argsort()], max(1, len(off) // 3)
    if by_size[:-third].amax() > 4 * by_size[-third:].median():
        return "Blocks of larger numbers come nearer. Which numbers have a scale in common?"
    return "What does each compression leave out, there and back, who keeps it, and of which sum is it the rest?"


@MEAN.check("what is left out is sent later", points=5)
def check_arrives(answer: Answer) -> None:
    """In each block, on both ways."""
    for where, p, n, block, batches, run in _runs(answer):
        for rank in range(p):
            require(
                torch.equal(run[rank]["last"], run[0]["last"]),
                f"{where}: rank {rank} gets another mean than rank 0, and their models part. Who makes the mean of a "
                "number, and what do all others get of it?",
            )
        right = batches.double().mean((0, 1))
        rows = [
            torch.nn.functional.pad(x, (0, -n % block)).view(-1, block)
            for x in (run[0]["mean"], right)
        ]
        off = (rows[0] - rows[1]).norm(dim=1) / rows[1].norm(dim=1)
        worst = int(off.nan_to_num(1e9).argmax())
        size = rows[1].abs().mean(1)
        summed = (rows[0] / p - rows[1]).norm(dim=1) <= 2 * OFF * rows[1].norm(dim=1)
        require(
            bool((off <= OFF).all()),
            f"{where}: in {STEPS} steps the mean of what comes back in block {worst}, of {len(off)}, is off by "
            f"{off[worst]:.0%} of that block's mean gradient, whose numbers are about {size[worst]:.2g}. "
            f"{_hint(off, size, bool(summed.all()))}",
        )


@MEAN.check("one bit of each number", points=5, needs=("check_arrives",))
def check_bytes(answer: Answer) -> None:
    """There and back, and a scale per block."""
    for where, p, n, block, _, run in _runs(answer):
        rows = -(-n // (p * block))  # blocks of a part
        limit = STEPS * (2 * (p - 1) * (-(-rows * block // 8) + 8 * rows) + SLACK)
        for rank in range(p):
            sent = run.traffic.bytes_sent(rank=rank)
            require(
                sent <= limit,
                f"{where}: rank {rank} sends {sent / STEPS:,.0f} bytes per step; one bit per number and 8 bytes per "
                f"block, to and from whoever adds a part, are at most {limit / STEPS:,.0f}. In how many bits does a "
                "number travel, each way, and to how many ranks?",
            )
            require_received(
                f"{where}: rank {rank}", run.traffic.bytes_received(rank), STEPS * (n // 8)
            )
