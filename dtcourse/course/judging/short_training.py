"""A training that is short enough to be tried many times: a small network on dark digits, four first weights at once.

What a decision about batch and learning rate is judged by: the steps are counted, and the seconds of a step are those
of an emulated cluster. Neither comes from a formula.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
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
# The first step after which a loss is looked at, and then those by which the steps have grown by 3 %. Nothing that the
# exercises train gets to its target in twice as many.
FIRST_LOOK = 33
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


def _losses(weights: list[Tensor]) -> list[float]:
    """Of a quarter of the training images, for each learning rate: the mean of its seeds."""
    x, hot = (part[::4].expand(len(weights[0]), -1, -1) for part in _digits())
    logits = _forward(weights, x)[1]
    each = logits.logsumexp(-1) - (logits * hot).sum(-1)
    return each.view(-1, SEEDS * each.shape[1]).mean(1).tolist()


class Training:
    """Plain SGD from the same first weights at several learning rates, which share their draws: one pass trains all.

    steps: of each learning rate, until its loss was at most the target; infinite where it was not, or is no number
    """

    def __init__(self, rates: Sequence[float], target: float) -> None:
        self.steps = [math.inf] * len(rates)
        self._target, self._draw = target, torch.Generator().manual_seed(7)
        self._weights = [w.repeat(len(rates), 1, 1) for w in _start(self._draw)]
        self._rates = list(rates)
        self._going = list(range(len(rates)))  # places of those whose loss is above the target
        self._step, self._look = 0, FIRST_LOOK

    def copy(self) -> Training:
        """Another one that goes on from here, with the same draws."""
        other = copy.copy(self)
        other.steps, other._weights = list(self.steps), [w.clone() for w in self._weights]
        other._draw = torch.Generator()
        other._draw.set_state(self._draw.get_state())
        return other

    @torch.no_grad()
    def go(self, until: int, batch: int) -> None:
        """On, with so many samples per step, until so many steps are done or each learning rate has come to its end."""
        x, hot = _digits()
        lr = torch.tensor(self._rates).repeat_interleave(SEEDS).view(-1, 1, 1)
        while self._going and self._step < until:
            self._step += 1
            mine = torch.randint(len(x), (SEEDS, batch), generator=self._draw)
            images, labels = (part[mine].repeat(len(self._going), 1, 1) for part in (x, hot))
            for w, g in zip(self._weights, _gradients(self._weights, images, labels), strict=True):
                w.sub_(g.mul_(lr))
            if self._step == self._look:
                self._look = max(self._step + 1, math.ceil(self._step * 1.03))
                lr = lr[self._see()]

    def _see(self) -> Tensor:
        """Looks at the losses, and lets go of those that have come to their end. Which weights stay."""
        stay = []
        for at, loss in enumerate(_losses(self._weights)):
            if loss <= self._target:
                self.steps[self._going[at]] = float(self._step)
            elif math.isfinite(loss):
                stay.append(at)
        kept = torch.tensor(
            [SEEDS * at + seed for at in stay for seed in range(SEEDS)], dtype=torch.int64
        )
        if len(stay) < len(self._going):
            self._going = [self._going[at] for at in stay]
            self._rates = [self._rates[at] for at in stay]
            self._weights = [w[kept] for w in self._weights]
        return kept


def steps_to_loss(batch: int, rates: Sequence[float]) -> list[float]:
    """Steps until the loss is at most TARGET, at each of the learning rates; infinite where that takes more than MOST.

    batch: samples of a step
    """
    training = Training(rates, TARGET)
    training.go(MOST, batch)
    return training.steps


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
