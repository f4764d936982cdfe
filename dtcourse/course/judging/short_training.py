"""A training that is short enough to be tried many times: a small network on dark digits, four first weights at once.

What a decision about batch and learning rate is judged by: the steps are counted, and the seconds of a step are those
of an emulated cluster. Neither comes from a formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

from dtcourse.course.judging import trials

SEEDS, HIDDEN, CLASSES = 4, 24, 10
DARK = (
    0.5  # what the images are multiplied by: the lesson's learning rates are not the best ones here
)
TARGET = 0.35  # training loss, the mean of all seeds
MOST = 240  # steps after which a training is given up
ELEMENTS = 2_000  # of a gradient that is sent


@cache
def _digits() -> tuple[Tensor, Tensor]:
    """(samples, 64) images, and (samples, CLASSES) with a 1 at the label."""
    from dtcourse import data

    images, labels = data.digits("train", flat=True).tensors
    return images * DARK, torch.nn.functional.one_hot(labels, CLASSES).to(images.dtype)


def _start(draw: torch.Generator) -> list[Tensor]:
    """Weights and biases of two layers, for all seeds."""
    first = torch.randn(SEEDS, 64, HIDDEN, generator=draw) / 8
    second = torch.randn(SEEDS, HIDDEN, CLASSES, generator=draw) / HIDDEN**0.5
    return [first, torch.zeros(SEEDS, 1, HIDDEN), second, torch.zeros(SEEDS, 1, CLASSES)]


def _forward(weights: list[Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """The hidden activations and the logits of x: (SEEDS, batch, 64)."""
    first, bias, second, offset = weights
    hidden = torch.baddbmm(bias, x, first).relu_()
    return hidden, torch.baddbmm(offset, hidden, second)


def _gradients(weights: list[Tensor], x: Tensor, hot: Tensor) -> list[Tensor]:
    """Of the mean cross-entropy of each seed's batch."""
    hidden, logits = _forward(weights, x)
    error = logits.softmax(-1).sub_(hot).div_(x.shape[1])
    below = torch.bmm(error, weights[2].transpose(1, 2)).mul_(hidden > 0)
    return [
        torch.bmm(x.transpose(1, 2), below),
        below.sum(1, keepdim=True),
        torch.bmm(hidden.transpose(1, 2), error),
        error.sum(1, keepdim=True),
    ]


def _loss(weights: list[Tensor]) -> float:
    """Of a quarter of the training images."""
    x, hot = (part[::4].expand(SEEDS, -1, -1) for part in _digits())
    return float(-(_forward(weights, x)[1].log_softmax(-1) * hot).sum(-1).mean())


@torch.no_grad()
def steps_to_loss(
    batch: int | Callable[[int], int], lr: float, target: float = TARGET, most: int = MOST
) -> float:
    """Steps of plain SGD until the loss is at most `target`, looked at when they have grown by 3 %; infinite where that
    takes more than `most`.

    batch: samples of a step; or of each step, counted from 0
    """
    batch_of = batch if callable(batch) else lambda _: batch
    draw = torch.Generator().manual_seed(7)
    weights, (x, hot), look = _start(draw), _digits(), 1
    for step in range(1, most + 1):
        mine = torch.randint(len(x), (SEEDS, batch_of(step - 1)), generator=draw)
        for w, g in zip(weights, _gradients(weights, x[mine], hot[mine]), strict=True):
            w.sub_(g, alpha=lr)
        if step < look:
            continue
        look = max(step + 1, math.ceil(step * 1.03))
        loss = _loss(weights)
        if not math.isfinite(loss):
            break
        if loss <= target:
            return float(step)
    return math.inf


@contextmanager
def one_thread() -> Iterator[None]:
    """Small products are slower on several threads; the notebook's own number of threads comes back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def step_seconds(times: int, micro_seconds: float) -> float:
    """On each rank: a step of so many micro-batches, and the all-reduce of the gradient. Seconds of the clock."""
    import torch.distributed as dist

    from dtcourse import emulation

    gradient = torch.ones(ELEMENTS)
    start = trials.begin_together()
    for _ in range(times):
        emulation.sleep(micro_seconds)
    dist.all_reduce(gradient)
    return emulation.now() - start
