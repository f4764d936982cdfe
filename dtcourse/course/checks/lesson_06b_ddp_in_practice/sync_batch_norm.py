"""SyncBatchNorm, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dtcourse.course.judging import Answer, Each, Exercise, require, require_close

Tensors = list[torch.Tensor]


SYNC = Exercise(
    "sync_batch_norm",
    lesson="06b",
    title="SyncBatchNorm, forward and backward",
    takes=("sync_batch_norm",),
    target="output and gradients to 1e-6 of one process; one collective forward, "
    "one backward, of 2 C + 1 and 2 C numbers",
    forbidden=(
        "torch.nn.SyncBatchNorm",
        "torch.nn.modules.batchnorm",
        "dtcourse.data_parallel",
        "dtcourse.parameters",
    ),
)


def _normalised(sync_batch_norm: Any, part: Any, weight: torch.Tensor, bias: torch.Tensor) -> Any:
    x, factors = part
    x, weight, bias = (t.clone().requires_grad_() for t in (x, weight, bias))
    y = sync_batch_norm(x, weight, bias, 1e-5)
    (y * factors).sum().backward()
    return y, x.grad, weight.grad, bias.grad


def _batch(counts: list[int], shape: tuple[int, ...], offset: float) -> tuple[Any, Any, Any]:
    def double(*size: int) -> torch.Tensor:
        return torch.randn(*size, dtype=torch.double)

    parts = [(double(n, *shape) * 2 + offset, double(n, *shape)) for n in counts]
    return parts, double(shape[0]) + 2, double(shape[0])


_CASES = [
    ([4, 4], (3,), 0.0),
    ([2, 5], (4, 3), 1.0),
    ([1, 6, 2], (2, 3, 2), -2.0),
    ([5], (3,), 0.0),
]


def _compare(answer: Answer, which: list[int], hints: list[str]) -> None:
    names = {0: "the output", 1: "the gradient of x", 2: "weight's gradient", 3: "bias's gradient"}
    for counts, shape, offset in _CASES:
        parts, weight, bias = _batch(counts, shape, offset)
        run = answer.run(_normalised, len(counts), Each(parts), weight, bias)
        x, factors = (torch.cat([p[i] for p in parts]) for i in (0, 1))
        x, weight, bias = (t.clone().requires_grad_() for t in (x, weight, bias))
        y = nn.functional.batch_norm(x, None, None, weight, bias, training=True, eps=1e-5)
        (y * factors).sum().backward()
        right: list[Any] = [y.detach(), x.grad, weight.grad, bias.grad]
        for i, hint in zip(which, hints, strict=True):
            require(all(r[i] is not None for r in run), f"Nothing came back for {names[i]}. {hint}")
            mine = torch.cat([r[i] for r in run]) if i < 2 else sum(r[i] for r in run)
            where = f"Parts of {counts} samples, x of shape (samples, {', '.join(map(str, shape))}): {names[i]}"
            require_close(mine, right[i], where, hint=hint, split=True)


@SYNC.check("the output, for parts of unequal size", points=2)
def check_output(answer: Answer) -> None:
    """Against nn.functional.batch_norm on the whole batch, on 1, 2 and 3 ranks."""
    _compare(
        answer,
        [0],
        [
            "Do mean and variance count every sample once, also where ranks hold different numbers of them? And is "
            "the variance that of the whole batch, not the mean of the ranks' variances?"
        ],
    )


@SYNC.check("the gradient of x", points=3)
def check_input_gradient(answer: Answer) -> None:
    """Through mean and variance, in which every sample of every rank has its part."""
    _compare(
        answer,
        [1],
        [
            "Every sample moved the mean and the variance of all: which two sums over the whole batch belong into "
            "its gradient? Are they sums over all ranks?"
        ],
    )


@SYNC.check("the gradients of weight and bias stay local", points=1)
def check_parameter_gradients(answer: Answer) -> None:
    """Their sum over the ranks is the whole batch's: data parallelism averages them later."""
    hint = (
        "Each rank should leave its own samples' share: DDP brings the ranks' together. Is it summed over ranks "
        "already?"
    )
    _compare(answer, [2, 3], [hint, hint])


@SYNC.check("one collective each way", points=2)
def check_sync_messages(answer: Answer) -> None:
    """2 C + 1 numbers of each rank forward, 2 C backward, of 8 bytes: all-reduced, or gathered as PyTorch does."""
    for counts, shape, offset in _CASES[:3]:
        parts, weight, bias = _batch(counts, shape, offset)
        ranks, channels = len(counts), shape[0]
        run = answer.run(_normalised, ranks, Each(parts), weight, bias, backend="ring", record=True)
        calls = run.traffic.calls(rank=0)
        require(
            calls == 2,
            f"{calls} collective calls, where one forward and one backward are enough. What can travel in one tensor?",
        )
        # A number takes this many messages' worth of 8 bytes, of all ranks: by an all-reduce, or an all-gather.
        reduced, gathered = 8 * 2 * (ranks - 1), 8 * ranks * (ranks - 1)
        gathers = 2 - run.traffic.calls(rank=0, operation="all_reduce")
        forward, backward = (gathered if gathers >= n else reduced for n in (1, 2))
        most = forward * (2 * channels + 1) + backward * 2 * channels
        sent = run.traffic.bytes_sent()
        said = (
            f"{sent:,} bytes are sent by {ranks} ranks; 2 C + 1 numbers of each forward and 2 C backward need "
            f"{most:,}."
        )
        require(
            sent != most + backward,
            f"{said} Does the count travel back, which has no gradient?",
        )
        require(sent <= most, f"{said} Which numbers of a rank are enough for the others?")
