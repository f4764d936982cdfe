"""Short runs with a large batch, and their logs: softmax regression on the digits, by ranks that share each batch.

What a diagnosis is asked about. Every run is trained; nothing in a log is made up but its rounding.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations

import torch
from torch import Tensor

KINDS = ("same samples", "summed", "not scaled", "warm-up in steps", "unstable", "too large")
STEPS = 30
ROUNDED = 1e-4  # a log's numbers are right to this part of them
WASTEFUL, USEFUL = (
    0.07,
    0.5,
)  # noise scale over batch: at most, where it is too large; at least, elsewhere
FACTOR = (4, 8)  # by how much the batch is larger than the one that the plan starts from


@dataclass(frozen=True)
class Plan:
    """What a run's author wanted: the linear rule from a small batch, after a warm-up that is counted in samples."""

    base_lr: float
    base_batch: int
    warmup: int  # samples
    ranks: int
    samples: int  # per rank and step

    @property
    def batch(self) -> int:
        return self.ranks * self.samples

    @property
    def peak(self) -> float:
        return self.base_lr * self.batch / self.base_batch

    def lr(self, step: int, kind: str) -> float:
        """The learning rate of a step, as a run of this kind has it."""
        if kind == "not scaled":
            return self.base_lr
        seen = step * (self.base_batch if kind == "warm-up in steps" else self.batch)
        return self.base_lr + (self.peak - self.base_lr) * min(1.0, seen / self.warmup)

    def told(self) -> dict[str, float]:
        """As an answer is given it."""
        names = ("base_lr", "base_batch", "warmup", "samples")
        return {name: getattr(self, name) for name in names}


@dataclass
class Log:
    """By step: the batch's loss, each rank's norm, the norm of what the optimizer took, how far the weights moved."""

    loss: list[float] = field(default_factory=list)
    own: list[list[float]] = field(default_factory=list)
    taken: list[float] = field(default_factory=list)
    moved: list[float] = field(default_factory=list)


@cache
def _digits() -> tuple[Tensor, Tensor]:
    """(samples, 65) images with a 1 for the bias, and (samples, 10) with a 1 at the label; double."""
    from dtcourse import data

    images, labels = data.digits("train", flat=True).tensors
    ones = torch.ones(len(images), 1)
    hot = torch.nn.functional.one_hot(labels, 10).double()
    return torch.cat([images, ones], dim=1).double(), hot


def logged(number: float) -> float:
    """As a log has it."""
    return number * (1 + random.uniform(-ROUNDED, ROUNDED))


def trained(plan: Plan, kind: str) -> Log:
    """A run from weights at zero, plain SGD."""
    x, hot = _digits()
    draw = torch.Generator().manual_seed(random.randrange(2**31))
    first, second = random.sample(range(plan.ranks), 2)
    w = torch.zeros(65, 10, dtype=torch.double)
    log = Log()
    for step in range(STEPS):
        mine = torch.randint(len(x), (plan.ranks, plan.samples), generator=draw)
        if kind == "same samples":
            mine[second] = mine[first]
        logits = x[mine] @ w
        error = logits.softmax(-1) - hot[mine]
        own = torch.einsum("rsn,rsc->rnc", x[mine], error) / plan.samples
        taken = own.sum(0) if kind == "summed" else own.mean(0)
        change = plan.lr(step, kind) * taken
        w -= change
        loss = -(logits.log_softmax(-1) * hot[mine]).sum(-1).mean().item()
        log.loss.append(logged(loss))
        log.own.append([logged(g.norm().item()) for g in own])
        log.taken.append(logged(taken.norm().item()))
        log.moved.append(logged(change.norm().item()))
    return log


def noise_over_batch(log: Log, plan: Plan, kind: str) -> float:
    """The noise scale over the batch, as ranks measure it over all steps."""
    small = sum(n * n for own in log.own for n in own) / plan.ranks / STEPS
    big = sum(n * n for n in log.taken) / STEPS / (plan.ranks**2 if kind == "summed" else 1)
    signal = (plan.batch * big - plan.samples * small) / (plan.batch - plan.samples)
    noise = (small - big) / (1 / plan.samples - 1 / plan.batch)
    return math.inf if signal <= 0 else noise / signal / plan.batch


def clear(log: Log, plan: Plan, kind: str) -> bool:
    """Whether a log tells what is wrong, and nothing besides."""
    rise = max(log.loss) / log.loss[0]
    if kind == "unstable":
        return rise > 1.6
    if rise > 1.2 or sum(log.loss[-5:]) / 5 > 0.97 * log.loss[0]:
        return False
    if kind == "same samples":
        return True
    apart = [
        max(abs(own[a] / own[b] - 1) for own in log.own[:8])
        for a, b in combinations(range(plan.ranks), 2)
    ]
    ratio = noise_over_batch(log, plan, kind)
    right = ratio < WASTEFUL if kind == "too large" else ratio > USEFUL
    return right and min(apart) > 0.02


def drawn_plan(kind: str) -> Plan:
    """Another one each time; where a rule is to fail, one with a high learning rate."""
    ranks, factor = random.choice((3, 4, 6)), random.choice(FACTOR)
    samples = {"too large": 256, "unstable": 24}.get(kind, 4) * random.choice((1, 2))
    batch = ranks * samples
    base_batch = batch // factor
    low, high = {"unstable": (6.0, 12.0), "summed": (0.1, 0.2)}.get(kind, (0.3, 0.6))
    peak, warmup = random.uniform(low, high), batch * random.choice((5, 6, 8))
    return Plan(peak * base_batch / batch, base_batch, warmup, ranks, samples)


def drawn(kind: str) -> tuple[Plan, Log]:
    """A run of this kind of which a log can tell what is wrong."""
    for _ in range(200):
        plan = drawn_plan(kind)
        log = trained(plan, kind)
        if clear(log, plan, kind):
            return plan, log
    raise RuntimeError(f"no run of 200 tells that it is {kind!r}")
