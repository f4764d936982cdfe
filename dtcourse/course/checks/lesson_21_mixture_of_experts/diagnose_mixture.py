"""Outputs of a mixture of experts on several ranks: which is broken, and how."""

from __future__ import annotations

import math
import random
from itertools import combinations

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
# Ranks, tokens per rank, experts, choices, capacity.
SIZES = ((2, 6, 4, 2, 5), (3, 5, 6, 2, 6), (4, 4, 5, 3, 9))


def _mixed(
    logits: Tensor,
    outputs: Tensor,
    k: int,
    capacity: int,
    parts: int = 1,
    lost: int = -1,
    first: bool = False,
) -> tuple[Tensor, Tensor]:
    """What a mixture computes, weighted and not.

    parts: how many groups of tokens are cut at `capacity` each
    first: all choices of the first token come first, a mistake
    """
    N, E = logits.shape
    top = logits.softmax(-1).topk(k)
    weights = top.values / top.values.sum(-1, keepdim=True)
    group = torch.arange(N) * parts // N
    chosen = torch.nn.functional.one_hot(top.indices.T, E)  # (k, N, E)
    kept_NE = torch.zeros(N, E, dtype=torch.bool)
    for part in range(parts):
        mine = (group == part)[None, :, None] * chosen
        if first:
            place = mine.transpose(0, 1).flatten(0, 1).cumsum(0).view(N, k, E).transpose(0, 1)
        else:
            place = mine.flatten(0, 1).cumsum(0).view_as(mine)
        kept_NE |= (mine.bool() & (place <= capacity)).any(0)
    if lost >= 0:
        kept_NE[:, lost] = False
    weights_NE = torch.zeros_like(logits).scatter(1, top.indices, weights)
    weighted = torch.einsum("ne,ned->nd", weights_NE * kept_NE, outputs)
    return weighted, torch.einsum("ne,ned->nd", kept_NE.to(weights_NE), outputs)


def cases() -> dict[str, list[Case]]:
    """Three outputs of each kind, drawn anew, rounded as a run in single precision is."""
    found: dict[str, list[Case]] = {}
    for p, tokens, E, k, capacity in SIZES:
        # Of the smallest the last expert is lost, which a loop may forget.
        lost = E - 1 if p == 2 else random.randrange(E)
        for kind, which, given in _drawn(p, tokens, E, k, capacity, lost):
            found.setdefault(kind, []).append(((*given, k, capacity, p), (kind, which)))
    return found


def _drawn(
    p: int, tokens: int, E: int, k: int, capacity: int, lost: int
) -> list[tuple[str, int | None, tuple[Tensor, Tensor, Tensor]]]:
    """A gate and experts of which each mistake, and each way to misread the limit, makes another output."""
    while True:
        logits = torch.randn(p * tokens, E, dtype=torch.double)
        outputs = torch.randn(p * tokens, E, 3, dtype=torch.double)
        right, unweighted = _mixed(logits, outputs, k, capacity)
        per_rank, _ = _mixed(logits, outputs, k, math.ceil(capacity / p), p)
        without, _ = _mixed(logits, outputs, k, capacity, lost=lost)
        # A limit of one pair more, and all choices of the first token first.
        misread = [
            _mixed(logits, outputs, k, capacity + 1)[0],
            _mixed(logits, outputs, k, capacity, first=True)[0],
        ]
        mistakes = [unweighted, per_rank, without]
        pairs = [(right, other) for other in (*mistakes, *misread)] + [*combinations(mistakes, 2)]
        if all((a - b).abs().max() > 0.01 for a, b in pairs):
            break
    outs = (
        ("healthy", None, right),
        ("unweighted", None, unweighted),
        ("capacity per rank", None, per_rank),
        ("lost expert", lost, without),
    )
    return [(kind, which, (logits, outputs, out.float().double())) for kind, which, out in outs]


def _described(
    logits: Tensor, _outputs: Tensor, _out: Tensor, k: int, capacity: int, p: int
) -> str:
    N, E = logits.shape
    return f"{plural(N, 'token')} on {plural(p, 'rank')}, {E} experts, k = {k}, capacity {capacity}"


def _require(answer: Answer, kind: str, hint: str) -> None:
    drawn = cases()
    require_diagnoses(
        answer,
        drawn["healthy"] + drawn[kind],
        describe=_described,
        hint=hint,
        healthy="What does your program make of it where nothing is wrong? Who comes first at an expert, all first "
        "choices or both of the first token? How many pairs does it take? What is the sum of a token's weights? And "
        "how far apart are two outputs of which one is rounded to single precision?",
        example=("lost expert", 2),
        shuffled=True,
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
