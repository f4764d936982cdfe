"""The mean of all ranks' vectors, one byte for each number there and back."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Each, Exercise, require, require_received
from dtcourse.plural import plural

MEAN = Exercise(
    "mean_in_int8",
    lesson="11",
    title="A mean in one byte",
    takes=("mean_in_int8",),
    target="each number off by half a step at most, and one byte of it there and back, at 2, 3 and 4 ranks",
    forbidden=("dtcourse.compression",),
)

SIZES = ((2, 3000, 100), (3, 2000, 64), (4, 2999, 50))  # ranks, numbers, block
SLACK = 64  # bytes: whole blocks and parts


def _means(mean_in_int8: Any, batches: list[Tensor], block: int) -> Any:
    """In a rank, for each of its vectors: what came out, and whether the one that went in is as it was."""
    found = []
    for own in batches:
        x = own.clone()
        out = mean_in_int8(x, block)
        found.append((out, bool(torch.equal(x.nan_to_num(), own.nan_to_num()))))
    return found


def _vectors(p: int, n: int, block: int) -> tuple[list[Tensor], ...]:
    """Each rank's vector, three times: noise of its own; ranks that agree, so that sums are large;
    and what is no number.

    Blocks differ a hundredfold, and so do ranks.
    """
    blocks = -(-n // block)
    sizes = (10.0 ** torch.linspace(-3, 1, blocks)).repeat_interleave(block)[:n]
    own = [torch.randn(n) * sizes * 10.0**-r for r in range(p)]
    common = torch.randn(n) * sizes
    agree = [common * (1 - 0.1 * r) for r in range(p)]
    broken = [x.clone() for x in own]
    for x in broken:
        x[block : 2 * block] = 0
    broken[p - 1][3 * block + 1] = math.nan
    broken[0][5 * block] = -math.inf
    return own, agree, broken


def _runs(answer: Answer) -> Any:
    for p, n, block in SIZES:
        batches = _vectors(p, n, block)
        run = answer.run(
            _means, p, Each(list(zip(*batches, strict=True))), block, backend="ring", record=True
        )
        yield p, n, block, batches, run


def _steps(parts: list[Tensor], block: int) -> Tensor:
    """(n,): a block's largest magnitude on any rank, over the codes that p of them may have."""
    p, n = len(parts), len(parts[0])
    each = torch.stack([torch.nn.functional.pad(x.abs(), (0, -n % block)) for x in parts])
    largest = each.view(p, -1, block).amax((0, 2))
    return (largest / (127 // p)).repeat_interleave(block)[:n]


def _hint(outs: list[Tensor], parts: list[Tensor], off: Tensor, allowed: Tensor) -> str:
    p, mean = len(parts), torch.stack(parts).mean(0)
    if any(not torch.equal(out, outs[0]) for out in outs[1:]):
        return "The ranks have different means: what does one and the same code stand for on each of them?"
    if ((outs[0] / p - mean).abs() <= allowed).all():
        return "That is p times the mean: what is a mean of p numbers?"
    wrong = off > allowed
    if (outs[0][wrong] * mean[wrong] < 0).double().mean() > 0.5:
        return (
            "Large numbers come out with the other sign: what is the "
            "largest sum of p codes, and what does int8 hold?"
        )
    return (
        "How many codes may a rank use so that p of them have a sum in int8, and whose largest number makes a "
        "block's scale?"
    )


@MEAN.check("each number is off by half a step at most", points=4)
def check_mean(answer: Answer) -> None:
    """On every rank the same."""
    for p, n, block, batches, run in _runs(answer):
        for i, parts in enumerate(batches[:2]):
            where = f"{plural(p, 'rank')}, {n} numbers in blocks of {block}"
            outs = [run[rank][i][0] for rank in range(p)]
            for rank, out in enumerate(outs):
                right = isinstance(out, Tensor) and out.shape == (n,)
                got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
                require(
                    right, f"{where}: a mean is a tensor of shape ({n},); rank {rank} has {got}."
                )
                require(
                    run[rank][i][1],
                    f"{where}: x itself was changed on rank {rank}. It is the model's.",
                )
            mean, allowed = torch.stack(parts).mean(0), _steps(parts, block) * 0.501
            for rank, out in enumerate(outs):
                off = (out - mean).abs()
                worst = int((off / allowed).nan_to_num(math.inf).argmax())
                require(
                    bool((off <= allowed).all()),
                    f"{where}: on rank {rank} number {worst} is {out[worst]:.4g}, and the mean is {mean[worst]:.4g}; "
                    f"half a step is {allowed[worst]:.4g}. {_hint(outs, parts, off, allowed)}",
                )
            same = all(torch.equal(out, outs[0]) for out in outs)
            require(same, f"{where}: {_hint(outs, parts, (outs[0] - mean).abs(), allowed)}")


@MEAN.check("zeros, NaN and infinity", points=3)
def check_broken(answer: Answer) -> None:
    """A block of zeros stays, and one that is broken on one rank is NaN on all; its neighbours are not."""
    for p, n, block, batches, run in _runs(answer):
        parts = batches[2]
        mean, allowed = torch.stack(parts).mean(0), _steps(parts, block) * 0.501
        for rank in range(p):
            out, where = run[rank][2][0], f"{plural(p, 'rank')}, rank {rank}"
            require(
                isinstance(out, Tensor) and out.shape == (n,),
                f"{where}: a mean has the shape ({n},).",
            )
            require(
                not out.isnan().all(),
                f"{where}: two blocks are broken, and every number came out as NaN. What do blocks share?",
            )
            zeros = out[block : 2 * block]
            require(
                bool((zeros == 0).all()),
                f"{where}: a block that is 0 on every rank came out as {zeros[0].item():g}. What is its scale, and "
                "what is divided by it?",
            )
            for first, name in ((3, "a NaN on the last rank"), (5, "an infinity on rank 0")):
                broken = out[first * block : (first + 1) * block]
                require(
                    bool(broken.isnan().all()),
                    f"{where}: a block with {name} has {int(broken.isnan().sum())} NaN of {block}. Nobody will see "
                    "it, and the step will be taken: what do all ranks learn about each block before they send codes?",
                )
            other = torch.ones(n, dtype=torch.bool)
            other[3 * block : 4 * block] = other[5 * block : 6 * block] = False
            require(
                bool(((out - mean).abs() <= allowed)[other].all()),
                f"{where}: one block is broken, and numbers of other blocks are wrong. What do blocks share?",
            )


@MEAN.check("one byte of each number", points=3, needs=("check_mean",))
def check_bytes(answer: Answer) -> None:
    """There and back, and a scale a block."""
    for p, n, block, batches, run in _runs(answer):
        blocks = -(-n // block)
        limit = len(batches) * (2 * (p - 1) * (-(-blocks * block // p) + 4 * blocks) + SLACK)
        for rank in range(p):
            sent = run.traffic.bytes_sent(rank=rank)
            require(
                sent <= limit,
                f"{plural(p, 'rank')}, {n} numbers in blocks of {block}, {plural(len(batches), 'time')}: rank "
                f"{rank} sends {sent:,} bytes; one byte of each number and a scale of each block are at most "
                f"{limit:,}. In what type do codes and sums travel, "
                "and does their number grow with the ranks?",
            )
            # Half of a byte: a code that is packed may have fewer bits.
            least, where = len(batches) * n // 2, f"{plural(p, 'rank')}, rank {rank}"
            require_received(where, run.traffic.bytes_received(rank), least)
