"""What a rank has sent of its gradients, step by step, drawn anew each time: is its error feedback broken, and how."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, place, require_kind
from dtcourse.plural import plural

DIAGNOSE = Exercise(
    "diagnose_feedback",
    lesson="12",
    title="Whose error feedback is broken, and how?",
    takes=("diagnose_feedback",),
    target="32 of 32 records, drawn anew each time, and shuffled",
)

Diagnosis = tuple[str, int | None]
Case = tuple[tuple[Tensor, Tensor, int], Diagnosis]


def sent_by(
    gradients: Tensor, k: int, *, feedback: bool = True, signed: bool = False,
    keeps_what_it_sends: bool = False, forgets: int = -1,
) -> Tensor:  # fmt: skip
    """(T, n): what travels of the gradients, (T, n)."""
    left, found = torch.zeros_like(gradients[0]), []
    for step, g in enumerate(gradients):
        if step == forgets or not feedback:
            left = torch.zeros_like(g)
        x = g + left
        places = (x if signed else x.abs()).topk(k).indices
        sent = torch.zeros_like(x).index_copy(0, places, x[places])
        left = x if keeps_what_it_sends else x - sent
        found.append(sent)
    return torch.stack(found)


def drawn(kind: str, turn: int) -> Case:
    """A record of this kind, rounded as a run in single precision is, and its diagnosis.

    turn: 0 to 3; what waited is forgotten before the second step, and before the last
    """
    steps, n, k = random.randint(8, 15), random.randint(25, 60), random.randint(1, 6)
    lost = place(turn, 1, steps - 1)
    ways: dict[str, tuple[int | None, dict[str, Any]]] = {
        "healthy": (None, {}),
        "no feedback": (None, {"feedback": False}),
        "signed": (None, {"signed": True}),
        "sent twice": (None, {"keeps_what_it_sends": True}),
        "forgotten": (lost, {"forgets": lost}),
    }
    where, options = ways[kind]
    while True:
        gradients = torch.randn(steps, n, dtype=torch.double)
        sent = sent_by(gradients, k, **options)
        # What was forgotten might not have travelled in that step.
        seen = slice(None) if where is None else where
        if kind == "healthy" or not torch.allclose(
            sent[seen], sent_by(gradients, k)[seen], atol=1e-3
        ):
            return (gradients, sent.float().double(), k), (kind, where)


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_kind(
        answer,
        kind,
        hint,
        drawn=drawn,
        each=4,
        describe=lambda gradients, _, k: (
            f"{plural(len(gradients), 'step')} of {gradients.shape[1]} numbers, k = {k}"
        ),
        healthy="What does a right sender send of these gradients, and how far apart are two records of which one is "
        "rounded to single precision?",
        example=("forgotten", 4),
        all_healthy="You call all records healthy. What was sent is rounded to single precision: does any of your "
        "comparisons ever hold, or all of them? And what is sent instead where feedback is broken?",
    )


@DIAGNOSE.check("no error feedback", points=2)
def check_none(answer: Answer) -> None:
    """Nothing of an earlier gradient ever travels."""
    _require(answer, "no feedback", "Is there anything of an earlier gradient in what is sent?")


@DIAGNOSE.check("the wrong side", points=2)
def check_signed(answer: Answer) -> None:
    """Negative numbers wait, however large they are."""
    _require(answer, "signed", "Which numbers wait, however large they have become?")


@DIAGNOSE.check("what was sent is kept", points=2)
def check_twice(answer: Answer) -> None:
    """And sent again."""
    _require(answer, "sent twice", "Add up what was sent: is it more than the gradients?")


@DIAGNOSE.check("what waited is forgotten", points=3)
def check_forgotten(answer: Answer) -> None:
    """And before which step."""
    _require(
        answer,
        "forgotten",
        "Up to a step all is right. From where on is something missing that had waited before?",
    )
