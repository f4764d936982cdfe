"""Dynamic loss scaling where each rank holds a shard, a step has several micro-batches, and the norm is clipped."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dtcourse.course.judging import Answer, Each, Exercise, require, require_received
from dtcourse.plural import plural

SCALER = Exercise(
    "sharded_scaler",
    lesson="14b",
    title="A scaler for a sharded model",
    takes=("ShardedScaler",),
    target="decisions, scales, norms and weights of one process over 30 steps at 1, 2 and 3 ranks; at most 64 bytes "
    "per rank and step",
    forbidden=(
        "torch.amp",
        "torch.cuda.amp",
        "dtcourse.memory",
        "dtcourse.parameters",
    ),
)

STEPS, MICRO, SCALE, MAX_NORM = 30, 4, 2.0**12, 2.0
_LR, _MOMENTUM = 2.0**-4, 0.9
# The last of three ranks has no parameter: a shard may be empty.
SIZES = {1: (12,), 2: (9, 6), 3: (9, 6, 0)}


@dataclass
class Played:
    """A run, and what it should have been.

    gradients: by rank, (steps, micro-batches, numbers of its shard), not scaled
    kinds:     of each step: "plain", "overflow" (in one micro-batch of one rank), "large sum" (each micro-batch is
               finite in float16, and their sum would not be)
    """

    gradients: list[torch.Tensor]
    kinds: list[str]
    scales: list[float]
    norms: list[float | None]
    weights: list[torch.Tensor]


def _train(
    ShardedScaler: Any, mine: torch.Tensor, interval: int
) -> tuple[list[float], list[float | None], torch.Tensor]:
    n = mine.shape[-1]
    cut = [n // 2, n - n // 2]
    shards = [nn.Parameter(torch.zeros(size)) for size in cut]
    optimizer = torch.optim.SGD(shards, lr=_LR, momentum=_MOMENTUM)
    scaler = ShardedScaler(SCALE, interval, MAX_NORM)
    scales, norms = [], []
    for step in mine:
        optimizer.zero_grad()
        scales.append(float(scaler.get_scale()))
        for micro in step:
            factor = scaler.scale(torch.ones(()))
            scaler.add([part.half() for part in (micro * factor).split(cut)])
        norm = scaler.step(optimizer)
        norms.append(None if norm is None else float(norm))
    return scales, norms, torch.cat([p.detach() for p in shards])


def played(ranks: int, interval: int) -> Played:
    """Draws gradients, and takes their steps in one process, in float64."""
    sizes = SIZES[ranks]
    found = Played([torch.zeros(STEPS, MICRO, n) for n in sizes], [], [], [], [])
    weights = [torch.zeros(n, dtype=torch.float64) for n in sizes]
    speeds, scale, good = [torch.zeros_like(w) for w in weights], SCALE, 0
    kinds = ["overflow"] * 6 + ["large sum"] * 6 + ["plain"] * (STEPS - 14)
    kinds = ["plain", *random.sample(kinds, len(kinds)), "plain"]
    for step, kind in enumerate(kinds):
        for gradients in found.gradients:
            gradients[step] = torch.randint(-8, 9, gradients[step].shape) / 64
        rank = random.randrange(min(ranks, 2))
        at = random.randrange(sizes[rank])
        if kind == "overflow":  # never in the last micro-batch
            found.gradients[rank][step, random.randrange(MICRO - 1), at] = 2.0**17 / scale
        elif kind == "large sum":
            found.gradients[rank][step, :2, at] = 1.25 * 2.0**15 / scale
        sums = [(g[step] * scale).half().double().sum(0) / scale for g in found.gradients]
        norm = torch.cat(sums).norm().item()
        fine = all(bool(s.isfinite().all()) for s in sums)
        found.kinds.append(kind)
        found.scales.append(scale)
        found.norms.append(norm if fine else None)
        good = good + 1 if fine else 0
        if not fine:
            scale /= 2
            continue
        for w, speed, g in zip(weights, speeds, sums, strict=True):
            speed.mul_(_MOMENTUM).add_(g * min(1.0, MAX_NORM / norm))
            w -= _LR * speed
        if good == interval:
            scale, good = scale * 2, 0
    found.weights = weights
    return found


def _run(answer: Answer, ranks: int, **options: Any) -> tuple[Any, Played]:
    interval = random.choice((3, 4))
    right = played(ranks, interval)
    return answer.run(_train, ranks, Each(right.gradients), interval, **options), right


_MISSED = (
    "one micro-batch of one rank has an infinite gradient, and the step was taken. Which micro-batches, "
    "and which ranks, have been looked at?"
)
_REFUSED = {
    "plain": "all gradients are finite, and the step was skipped. What does each step begin with?",
    # Either mistake ends so, and which of the two steps comes first is drawn.
    "large sum": "each micro-batch's gradients are finite, and the step was skipped. In which type are they added up? "
    "What does each step begin with?",
}


@SCALER.check("all ranks step, or none does", points=3)
def check_together(answer: Answer) -> None:
    """Decisions of the ranks, against each other and against one process."""
    for ranks in (1, 2, 3):
        run, right = _run(answer, ranks)
        for step, kind in enumerate(right.kinds):
            where = f"{plural(ranks, 'rank')}, step {step}"
            said = [run[rank][1][step] is not None for rank in range(ranks)]
            require(
                len(set(said)) == 1,
                f"{where}: some ranks stepped and others did not ({said}), so the shards are no longer of one step. "
                "How does a rank learn of another's overflow?",
            )
            fine = right.norms[step] is not None
            if said[0] != fine:
                require(
                    False, f"{where}: {_REFUSED.get(kind, _REFUSED['plain']) if fine else _MISSED}"
                )


@SCALER.check("the scale goes down at once and up with patience", points=2)
def check_scales(answer: Answer) -> None:
    """The scales of 30 steps, exactly."""
    for ranks in (1, 3):
        run, right = _run(answer, ranks)
        for step, scale in enumerate(right.scales):
            for rank in range(ranks):
                got = run[rank][0][step]
                if got == scale:
                    continue
                before = "a skipped" if step and right.norms[step - 1] is None else "a taken"
                require(
                    False,
                    f"{plural(ranks, 'rank')}, step {step}, after {before} step: rank {rank}'s scale should be "
                    f"{scale:g}, and is {got:g}. Halve after an overflow; double after growth_interval good steps in "
                    "a row: which event sets that count to zero, and does a micro-batch count as a step?",
                )


@SCALER.check("norms and weights of one process", points=3, needs=("check_together",))
def check_weights(answer: Answer) -> None:
    """Norms before clipping, to 1e-5; weights after 30 steps with momentum, to 1e-4."""
    for ranks in (1, 2, 3):
        run, right = _run(answer, ranks)
        for rank in range(ranks):
            for step, norm in enumerate(right.norms):
                got = run[rank][1][step]
                if norm is None or got is None:
                    continue
                require(
                    abs(got - norm) <= 1e-5 * norm,
                    f"{plural(ranks, 'rank')}, step {step}: rank {rank} says that the norm is {got:.5g}; the norm of "
                    f"the whole model's gradient, without a scale, is {norm:.5g}. Over which ranks is it a sum, "
                    "and of what?",
                )
            off = (run[rank][2].double() - right.weights[rank]).abs()
            require(
                off.numel() == 0 or off.max().item() <= 1e-4,
                f"{plural(ranks, 'rank')}: the norms are right, and rank {rank}'s weights are up to "
                f"{off.max().item() if off.numel() else 0:.3g} from those of one process. What does the optimizer see "
                "as gradient, and what does it do in a step that is skipped?",
            )


@SCALER.check("a few bytes", points=2, needs=("check_together", "check_weights"))
def check_bytes(answer: Answer) -> None:
    """At most 64 bytes per rank and step."""
    run, right = _run(answer, 3, backend="ring", record=True)
    taken = sum(norm is not None for norm in right.norms)
    for rank in range(3):
        sent, budget = run.traffic.bytes_sent(rank=rank), 64 * STEPS
        require(
            sent <= budget,
            f"rank {rank} sent {sent:,} bytes in {STEPS} steps of {MICRO} micro-batches; {budget:,} are allowed. "
            "What do the others need to know, and how often?",
        )
        # What others add to a norm that is right to 1e-5, in each step that is taken.
        require_received(f"Rank {rank}", run.traffic.bytes_received(rank), 4 * taken)
