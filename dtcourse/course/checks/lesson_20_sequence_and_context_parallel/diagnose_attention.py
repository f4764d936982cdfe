"""Outputs of causal attention on several ranks: which is broken, and how."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, require_diagnoses
from dtcourse.plural import plural

DIAGNOSE = Exercise(
    "diagnose_attention",
    lesson="20",
    title="Which attention is broken, and how?",
    takes=("diagnose_attention",),
    target="12 of 12 outputs, on 2 to 5 ranks",
)

Diagnosis = tuple[str, int | None]
Case = tuple[tuple[Any, ...], Diagnosis]  # (q, k, v, out, ranks), what is wrong
# Ranks, tokens per rank, size of the queries. Small scores make small errors.
SIZES = ((2, 6, 1.0), (3, 4, 0.1), (5, 3, 3.0))


def _inputs(p: int, tokens: int, size: float) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
    """q, k, v, then scores, the causal mask, and each token's rank."""
    q, k, v = torch.randn(3, 2, p * tokens, 4, dtype=torch.double)
    q = q * size
    at = torch.arange(p * tokens)
    return [q, k, v], q @ k.mT / 2, at <= at[:, None], at // tokens


def _attention(scores: Tensor, visible: Tensor, v: Tensor) -> Tensor:
    return scores.masked_fill(~visible, -torch.inf).softmax(-1) @ v


def _in_single(out: Tensor) -> Tensor:
    """Rounded as a run in single precision is."""
    return out.float().double()


def healthy() -> list[Case]:
    """As it should be, but for rounding."""
    found: list[Case] = []
    for p, tokens, size in SIZES:
        inputs, scores, causal, _ = _inputs(p, tokens, size)
        found.append(
            ((*inputs, _in_single(_attention(scores, causal, inputs[2])), p), ("healthy", None))
        )
    return found


def wrong_offset() -> list[Case]:
    """Every rank counts from 0."""
    found: list[Case] = []
    for p, tokens, size in SIZES:
        inputs, scores, _, _ = _inputs(p, tokens, size)
        local = torch.arange(p * tokens) % tokens
        out = _attention(scores, local <= local[:, None], inputs[2])
        found.append(((*inputs, _in_single(out), p), ("wrong offset", None)))
    return found


def not_rescaled() -> list[Case]:
    """Each block's sums are relative to its own maximum."""
    found: list[Case] = []
    for p, tokens, size in SIZES:
        inputs, scores, causal, rank = _inputs(p, tokens, size)
        weighted, total = torch.zeros_like(inputs[2]), torch.zeros_like(scores[..., :1])
        for block in range(p):
            seen = causal & (rank == block)
            largest = scores.masked_fill(~seen, -torch.inf).amax(-1, keepdim=True)
            weights = ((scores - largest).exp() * seen).nan_to_num(0.0, 0.0, 0.0)
            weighted += weights @ inputs[2]
            total += weights.sum(-1, keepdim=True)
        found.append(((*inputs, _in_single(weighted / total), p), ("not rescaled", None)))
    return found


def lost_block() -> list[Case]:
    """One rank never meets the first one's keys; the last rank among them."""
    found: list[Case] = []
    for p, tokens, size in SIZES:
        inputs, scores, causal, rank = _inputs(p, tokens, size)
        ill = p - 1 if size == 3.0 else random.randrange(1, p)
        seen = causal & ~((rank[:, None] == ill) & (rank == 0))
        found.append(
            ((*inputs, _in_single(_attention(scores, seen, inputs[2])), p), ("lost block", ill))
        )
    return found


def _require(answer: Answer, cases: list[Case], hint: str) -> None:
    require_diagnoses(
        answer,
        cases + healthy(),
        describe=lambda q, _k, _v, _out, p: f"{plural(q.shape[1], 'token')} on {plural(p, 'rank')}",
        hint=hint,
        healthy="How far apart are two outputs of which one is rounded to single precision?",
        example=("lost block", 2),
        shuffled=True,
    )


@DIAGNOSE.check("a mask with the wrong offset", points=2)
def check_offset(answer: Answer) -> None:
    """Queries and keys of all ranks from 0."""
    _require(
        answer,
        wrong_offset(),
        "If both a rank's queries and every block's keys are counted from 0, which pairs are seen?",
    )


@DIAGNOSE.check("a softmax that is not rescaled", points=3)
def check_softmax(answer: Answer) -> None:
    """With small scores as well."""
    _require(
        answer,
        not_rescaled(),
        "With small scores this error is small. Which outputs stay right, and what would the other mistakes give "
        "exactly?",
    )


@DIAGNOSE.check("a block that a rank has never met", points=3)
def check_lost(answer: Answer) -> None:
    """And which rank."""
    _require(
        answer,
        lost_block(),
        "Only one rank's tokens are wrong. Which rank's, and what would they be without rank 0's keys?",
    )
