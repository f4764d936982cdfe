"""A scaler for several ranks."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn

from dtcourse.course.judging import Answer, Exercise, require
from dtcourse.plural import plural

SCALER = Exercise(
    "scaler",
    lesson="14",
    title="A scaler for several ranks",
    takes=("Scaler",),
    target="PyTorch's rules over 40 steps at 1, 2 and 3 ranks, at most 64 bytes a rank and step",
    forbidden=(
        "torch.amp",
        "torch.cuda.amp",
        "dtcourse.memory",
    ),
)

_RATE = 2.0**-4
_LARGEST = torch.finfo(torch.float32).max


def _train(
    Scaler: Any, gradients: list[torch.Tensor], scale: float, interval: int
) -> tuple[list[float], list[bool], torch.Tensor]:
    import torch.distributed as dist

    w = nn.Parameter(torch.zeros(gradients[0].shape[1]))
    idle = nn.Parameter(torch.zeros(3))  # has no gradient
    optimizer = torch.optim.SGD([w, idle], lr=_RATE)
    scaler, scales, stepped = Scaler(scale, interval), [], []
    for gradient in gradients[dist.get_rank()]:
        optimizer.zero_grad()
        scales.append(float(scaler.get_scale()))
        scaler.scale((w * gradient).sum()).backward()
        stepped.append(bool(scaler.step(optimizer)))
        scaler.update()
    return scales, stepped, w.detach()


def _expected(
    gradients: list[torch.Tensor], scale: float, interval: int
) -> tuple[list[float], list[bool], list[torch.Tensor]]:
    weights = [torch.zeros(g.shape[1]) for g in gradients]
    scales, stepped, good = [], [], 0
    for i in range(len(gradients[0])):
        scales.append(scale)
        fine = all((g[i].double() * scale).abs().max() <= _LARGEST for g in gradients)
        stepped.append(fine)
        if fine:
            for w, g in zip(weights, gradients, strict=True):
                w -= _RATE * g[i]
        good = good + 1 if fine else 0
        if not fine:
            scale /= 2
        elif good == interval:
            scale, good = scale * 2, 0
    return scales, stepped, weights


def _gradients(ranks: int, steps: int = 40) -> list[torch.Tensor]:
    """Small whole numbers, so that sums are exact; now and then one rank has a number that
    only a small scale can bear.
    """
    gradients = [torch.randint(-8, 9, (steps, 40)).float() for _ in range(ranks)]
    for step in sorted(random.sample(range(2, steps - 2), 6)):
        gradients[random.randrange(ranks)][step, random.randrange(40)] = 2.0**112
    return gradients


def _played(answer: Answer, ranks: int, **options: Any) -> tuple[Any, Any, list[torch.Tensor]]:
    gradients, scale, interval = _gradients(ranks), 2.0**17, random.choice((3, 4))
    run = answer.run(_train, ranks, gradients, scale, interval, **options)
    return run, _expected(gradients, scale, interval), gradients


@SCALER.check("all ranks step, or none does", points=2)
def check_together(answer: Answer) -> None:
    """Decisions of the ranks, against each other and against the rule."""
    for ranks in (2, 3):
        run, (_, stepped, _), gradients = _played(answer, ranks)
        for step, right in enumerate(stepped):
            said = [run[rank][1][step] for rank in range(ranks)]
            require(
                len(set(said)) == 1,
                f"{plural(ranks, 'rank')}, step {step}: some ranks stepped and others did not ({said}), so the "
                "model's parts are no longer of one step. How does a rank learn of another's overflow?",
            )
            largest = max(g[step].abs().max().item() for g in gradients)
            require(
                said[0] == right,
                f"{plural(ranks, 'rank')}, step {step}: `step` returned {said[0]}, and a gradient "
                f"{'was' if largest > 100 and not right else 'was not'} infinite. When may it step?",
            )


@SCALER.check("the scale goes down at once and up with patience", points=2)
def check_scales(answer: Answer) -> None:
    """The scales of 40 steps, exactly."""
    for ranks in (1, 3):
        run, (scales, stepped, _), _ = _played(answer, ranks)
        for step, right in enumerate(scales):
            got = run[0][0][step]
            if got == right:
                continue
            before = "a skipped" if step and not stepped[step - 1] else "a good"
            require(
                False,
                f"step {step}, after {before} step: the scale should be {right:g}, and is {got:g}. Halve after an "
                "overflow; double after growth_interval good steps in a row: which event sets that count to zero?",
            )


@SCALER.check("weights as if nothing had been scaled, for a few bytes", points=2)
def check_weights(answer: Answer) -> None:
    """Exact weights; traffic of at most 64 bytes a rank and step."""
    ranks = 3
    run, (_, _, weights), gradients = _played(answer, ranks, backend="ring", record=True)
    for rank in range(ranks):
        require(
            torch.equal(run[rank][2], weights[rank]),
            f"rank {rank}'s weights are not those of the steps that were taken, with unscaled gradients "
            f"(largest difference {(run[rank][2] - weights[rank]).abs().max():.3g}). What does the optimizer see as "
            "gradient?",
        )
        budget = 64 * len(gradients[0])
        sent = run.traffic.bytes_sent(rank=rank)
        require(
            sent <= budget,
            f"rank {rank} sent {sent:,} bytes in {len(gradients[0])} steps; {budget:,} are allowed. What do the "
            "others need to know: the gradients, or one thing about them?",
        )
