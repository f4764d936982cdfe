"""Outputs of a mixture of experts on several ranks: which is broken, and how."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, require_diagnoses
from dtcourse.plural import plural

DIAGNOSE = Exercise(
    "diagnose_mixture",
    lesson="21",
    title="Which mixture is broken, and how?",
    takes=("diagnose_mixture",),
    target="12 of 12 outputs, on 2 to 4 ranks",
)

Diagnosis = tuple[str, int | None]
Case = tuple[tuple[Tensor, Tensor, Tensor, int, int, int], Diagnosis]
# Ranks, tokens per rank, experts, choices, capacity, and the expert that is lost.
SIZES = ((2, 6, 4, 2, 5, 3), (3, 5, 6, 2, 6, 0), (4, 4, 5, 3, 9, 2))


def _mixed(
    logits: Tensor, outputs: Tensor, k: int, capacity: int, parts: int = 1, lost: int = -1
) -> tuple[Tensor, Tensor]:
    """What a mixture computes, weighted and not. parts: how many groups of tokens are cut at `capacity` each."""
    N, E = logits.shape
    top = logits.softmax(-1).topk(k)
    weights = top.values / top.values.sum(-1, keepdim=True)
    group = torch.arange(N) * parts // N
    chosen = torch.nn.functional.one_hot(top.indices.T, E)  # (k, N, E)
    kept_NE = torch.zeros(N, E, dtype=torch.bool)
    for part in range(parts):
        mine = (group == part)[None, :, None] * chosen
        place = mine.flatten(0, 1).cumsum(0).view_as(mine)
        kept_NE |= (mine.bool() & (place <= capacity)).any(0)
    if lost >= 0:
        kept_NE[:, lost] = False
    weights_NE = torch.zeros_like(logits).scatter(1, top.indices, weights)
    weighted = torch.einsum("ne,ned->nd", weights_NE * kept_NE, outputs)
    return weighted, torch.einsum("ne,ned->nd", kept_NE.to(weights_NE), outputs)


@cache
def cases() -> dict[str, list[Case]]:
    """Three outputs of each kind, always the same ones, rounded as a run in single precision is."""
    found: dict[str, list[Case]] = {}
    for p, tokens, E, k, capacity, lost in SIZES:
        make = torch.Generator().manual_seed(p)
        logits = torch.randn(p * tokens, E, generator=make, dtype=torch.double)
        outputs = torch.randn(p * tokens, E, 3, generator=make, dtype=torch.double)
        right, unweighted = _mixed(logits, outputs, k, capacity)
        for name, which, out in (
            ("healthy", None, right),
            ("unweighted", None, unweighted),
            (
                "capacity per rank",
                None,
                _mixed(logits, outputs, k, math.ceil(capacity / p), p)[0],
            ),
            ("lost expert", lost, _mixed(logits, outputs, k, capacity, lost=lost)[0]),
        ):
            given = (logits, outputs, out.float().double(), k, capacity, p)
            found.setdefault(name, []).append((given, (name, which)))
    return found


def _described(
    logits: Tensor, _outputs: Tensor, _out: Tensor, k: int, capacity: int, p: int
) -> str:
    N, E = logits.shape
    return f"{plural(N, 'token')} on {plural(p, 'rank')}, {E} experts, k = {k}, capacity {capacity}"


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_diagnoses(
        answer,
        cases()["healthy"] + cases()[kind],
        describe=_described,
        hint=hint,
        healthy="What does your program make of it where nothing is wrong? Who comes first at an expert, all first "
        "choices or both of the first token? How many pairs does it take? What is the sum of a token's weights? And "
        "how far apart are two outputs of which one is rounded to single precision?",
        example=("lost expert", 2),
    )


@DIAGNOSE.check("the gate's weights are missing", points=2)
def check_weights(answer: Answer) -> None:
    """Nothing else is wrong with it."""
    _require(answer, "unweighted", "What would the output be if each pair counted fully?")


@DIAGNOSE.check("a capacity counted on each rank", points=3)
def check_capacity(answer: Answer) -> None:
    """Others are dropped, and more or fewer of them."""
    _require(
        answer,
        "capacity per rank",
        "Whole tokens or pairs are missing, and others are there that should be dropped. Who counts to which "
        "number, and over whose tokens?",
    )


@DIAGNOSE.check("an expert whose rows are lost", points=3)
def check_lost(answer: Answer) -> None:
    """And which."""
    _require(
        answer,
        "lost expert",
        "Only tokens of one expert are wrong. Which expert's, and what remains of them without it?",
    )
