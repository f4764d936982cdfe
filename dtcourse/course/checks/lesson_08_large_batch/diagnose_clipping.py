"""Gradients before and after clipping, of runs whose loss falls: which clips wrongly, and since when?"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, require_diagnoses

DIAGNOSE = Exercise(
    "diagnose_clipping",
    lesson="08",
    title="Which run clips wrongly, and since when?",
    takes=("diagnose_clipping",),
    target="15 of 15 runs, of 2 to 4 ranks",
)

HEALTHY = (
    "Each step is the mean there, cut to max_norm where it is longer (one of these runs has PyTorch's 1e-6 added to "
    "the norm), and the ranks' gradients differ."
)
KINDS = ("early", "by shard", "sum's norm", "same samples")
Run = tuple[Tensor, Tensor, float]  # own (steps, ranks, n), used (steps, n), max_norm
Diagnosis = tuple[str, int | None]
# Ranks, weights, and the steps whose samples are so large that their gradients are long.
SIZES = ((2, 6, (3,)), (3, 7, (2, 5)), (4, 9, (1, 4)))
STEPS, SAMPLES, LR, LIMIT = 7, 4, 0.05, 6.0


def clip(g: Tensor, limit: float, added: float = 0.0) -> Tensor:
    """`g`, cut to the limit where it is longer."""
    return g * min(1.0, limit / (g.norm().item() + added))


def variants(own: Tensor, limit: float, added: float = 0.0) -> dict[str, Tensor]:
    """What each kind of run takes for a step, from each rank's gradient: (ranks, n)."""
    mean = own.mean(0)
    right = clip(mean, limit, added)
    return {
        "healthy": right,
        "early": torch.stack([clip(g, limit) for g in own]).mean(0),
        "by shard": torch.cat([clip(part, limit) for part in mean.tensor_split(len(own))]),
        "sum's norm": clip(own.sum(0), limit) / len(own),
        "same samples": right,
    }


def trained(kind: str, size: tuple[int, int, tuple[int, ...]], seed: int) -> tuple[Run, Diagnosis]:
    """Linear regression by that many ranks, with a mistake from the first long gradient on."""
    ranks, features, long = size
    make = torch.Generator().manual_seed(seed)
    wanted = torch.randn(features, generator=make, dtype=torch.double)
    now = torch.zeros_like(wanted)
    all_own, used, first = [], [], None
    for step in range(STEPS):
        x = torch.randn(ranks, SAMPLES, features, generator=make, dtype=torch.double)
        x *= 3.0 if step in long else 0.7
        if kind == "same samples" and step >= long[0]:
            x = x[:1].expand_as(x)
        off = x @ (now - wanted)
        own = 2 * torch.einsum("rs,rsn->rn", off, x) / SAMPLES
        one = variants(own, LIMIT, 1e-6 if ranks == 3 else 0.0)
        taken = one[kind]
        wrong = (taken - one["healthy"]).norm() > 1e-3 * one["healthy"].norm()
        if first is None and (wrong or (kind == "same samples" and step >= long[0])):
            first = step
        all_own.append(own)
        used.append(taken)
        now = now - LR * taken
    right: Diagnosis = ("healthy", None) if kind == "healthy" else (kind, first)
    return (torch.stack(all_own), torch.stack(used), LIMIT), right


def is_plain(run: Run, right: Diagnosis, long: int) -> bool:
    """That the run goes wrong where it should, and that no other kind is near it there."""
    kind, step = right
    if kind == "healthy":
        return True
    if step is None or step < long:
        return False
    one = variants(run[0][step], LIMIT)
    others = [one[other] for other in ("healthy", *KINDS[:3]) if other != kind]
    return kind == "same samples" or all(
        (one[kind] - other).norm() > 0.05 * one[kind].norm() for other in others
    )


@cache
def cases() -> dict[str, list[tuple[Run, Diagnosis]]]:
    """Three runs of each kind, always the same ones."""

    def plain(kind: str, size: tuple[int, int, tuple[int, ...]]) -> tuple[Run, Diagnosis]:
        tried = (trained(kind, size, seed) for seed in range(100))
        return next(one for one in tried if is_plain(*one, size[2][0]))

    return {kind: [plain(kind, size) for size in SIZES] for kind in ("healthy", *KINDS)}


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_diagnoses(
        answer,
        cases()[kind] + cases()["healthy"],
        describe=lambda own, *_: f"A run of {own.shape[1]} ranks and {len(own)} steps",
        hint=hint,
        healthy=HEALTHY,
        example=("early", 2),
    )


@DIAGNOSE.check("clipped before the average", points=2)
def check_early(answer: Answer) -> None:
    """Each rank by its own norm."""
    _require(
        answer,
        "early",
        "What does the mean of gradients that were clipped one by one look like, and in which step does it first "
        "differ from the right one?",
    )


@DIAGNOSE.check("each shard by its own norm", points=2)
def check_shard(answer: Answer) -> None:
    """Each part of the mean is at most max_norm long."""
    _require(
        answer,
        "by shard",
        "Cut the mean as the ranks hold it, and clip each part alone: in which step does that differ?",
    )


@DIAGNOSE.check("the norm of the sum", points=2)
def check_sum(answer: Answer) -> None:
    """Clipped before it is divided by the number of ranks."""
    _require(
        answer,
        "sum's norm",
        "The direction is right there, and the step too short. Which norm was it compared with?",
    )


@DIAGNOSE.check("the same samples on all ranks", points=2)
def check_same(answer: Answer) -> None:
    """Clipping is as it should be."""
    _require(
        answer,
        "same samples",
        "Clipping is right there. How large is the noise between the ranks, step by step?",
    )
