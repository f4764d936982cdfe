"""Clip what is spread over ranks."""

from __future__ import annotations

import math
from typing import Any

import torch

from dtcourse.course.judging import Answer, Each, Exercise, require, require_received
from dtcourse.plural import plural

Tensors = list[torch.Tensor]

CLIP = Exercise(
    "clip_gradients",
    lesson="08b",
    title="Clip what is spread over ranks",
    takes=("clip_gradients",),
    target="norm and gradients to 1e-12 of one process's on 1 to 4 ranks; at most 64 bytes sent by a rank",
    forbidden=(
        "dtcourse.large_batch",
        "dtcourse.parameters",
        "dtcourse.sharding",
    ),
)


def _clip(clip_gradients: Any, replicated: Tensors, mine: Tensors, limits: list[float]) -> Any:
    found = []
    for limit in limits:
        whole, parts = [g.clone() for g in replicated], [g.clone() for g in mine]
        norm = clip_gradients(whole, parts, limit)
        found.append((float(norm), whole, parts))
    return found


def _wrongly_scaled(after: torch.Tensor, before: torch.Tensor, norm: float, limit: float) -> str:
    """What is wrong with a gradient that was scaled; empty where nothing is."""
    right = min(1.0, limit / norm)
    # PyTorch's clip_grad_norm_ adds 1e-6 to the norm that it divides by.
    for factor in (right, min(1.0, limit / (norm + 1e-6))):
        if torch.allclose(after, factor * before, rtol=1e-9, atol=1e-12):
            return ""
    got = ((after * before).sum() / before.square().sum()).item()
    if not torch.allclose(after, got * before, rtol=1e-6, atol=1e-9):
        return "is no multiple of what it was. One factor is right for all gradients."
    said = f"is multiplied by {got:.6g}"
    if right == 1:
        return said + ". That is within the limit: only gradients that are too long are scaled."
    if math.isclose(got, 1):
        return (
            f"is left as it was, and {right:.6g} of it is right. Is "
            "it scaled in place, and is it among what you scale?"
        )
    if math.isclose(got, right, rel_tol=0.05):
        return (
            said
            + f", and {right:.6g} is right. Is something added to the norm? PyTorch adds 1e-6, which is as good."
        )
    return (
        said
        + f", and {right:.6g} is right: max_norm over the norm of all gradients. By what do you divide, and how "
        "often do you scale?"
    )


def _ask_clip(answer: Answer, ranks: int, replicated: Tensors, spread: Tensors, hint: str) -> None:
    """Tensor i of `spread` is cut over the ranks; a rank whose part is empty does not hold it at all."""
    sharded = [
        [p for p in (g.tensor_split(ranks)[r] for g in spread) if len(p)] for r in range(ranks)
    ]
    total = math.sqrt(sum(g.square().sum().item() for g in replicated + spread))
    limits = [total * 2, total / 3]
    run = answer.run(_clip, ranks, replicated, Each(sharded), limits, timeout=8.0)
    for rank in range(ranks):
        for limit, (norm, whole, parts) in zip(limits, run[rank], strict=True):
            require(
                math.isclose(norm, total, rel_tol=1e-12),
                f"On {plural(ranks, 'rank')} the norm of all gradients is {total:.6g}, and rank {rank} says "
                f"{norm:.6g}. {hint}",
            )
            names = ["a replicated gradient"] * len(whole) + ["a shard"] * len(parts)
            for name, mine, theirs in zip(
                names, whole + parts, replicated + sharded[rank], strict=True
            ):
                why = _wrongly_scaled(mine, theirs, total, limit)
                require(
                    not why,
                    f"On {plural(ranks, 'rank')} the norm of all gradients is {total:.4g} and the limit {limit:.4g}; "
                    f"on rank {rank} {name} {why}",
                )


@CLIP.check("replicated gradients alone", points=1, needs=("check_clip_sharded",))
def check_clip_replicated(answer: Answer) -> None:
    """Every rank holds them whole; they count once."""
    gradients = [torch.randn(4, 3, dtype=torch.double), torch.randn(5, dtype=torch.double)]
    for ranks in (1, 3):
        _ask_clip(
            answer,
            ranks,
            gradients,
            [],
            "Replicated gradients are the same on all ranks: do they count once, or once per rank?",
        )


@CLIP.check("sharded gradients alone", points=2)
def check_clip_sharded(answer: Answer) -> None:
    """Each rank holds a part."""
    gradients = [torch.randn(12, 2, dtype=torch.double), 10 * torch.randn(7, dtype=torch.double)]
    for ranks in (2, 4):
        _ask_clip(
            answer,
            ranks,
            [],
            gradients,
            "Which part of |g|² does a rank know by itself, and who knows the rest?",
        )


@CLIP.check("both together, and a rank that holds no shard", points=2)
def check_clip_mixed(answer: Answer) -> None:
    """Two rows over three ranks: the last one has nothing, and must come to the all-reduce all the same."""
    replicated, spread = (
        [torch.randn(6, dtype=torch.double)],
        [torch.randn(2, 3, dtype=torch.double)],
    )
    _ask_clip(
        answer,
        3,
        replicated,
        spread,
        "Some squares are to be added over the ranks, and some are not. Which?",
    )


@CLIP.check("at most 64 bytes sent by each rank", points=1, needs=("check_clip_sharded",))
def check_clip_bytes(answer: Answer) -> None:
    """Counted message by message: one number is enough."""
    ranks, elements = 4, 4_000
    spread = [torch.randn(elements, dtype=torch.double) for _ in range(2)]
    sharded = [[g.tensor_split(ranks)[r] for g in spread] for r in range(ranks)]
    run = answer.run(_clip, ranks, [], Each(sharded), [1.0], backend="ring", record=True)
    for rank in range(ranks):
        sent = run.traffic.bytes_sent(rank=rank)
        require(
            sent <= 64,
            f"Rank {rank} sends {sent:,} bytes; the gradients it holds are {8 * elements // 2:,}. What is the least "
            "that the others need to know of them?",
        )
        require_received(
            f"Rank {rank}", run.traffic.bytes_received(rank), 8
        )  # the sum of the others' squares
