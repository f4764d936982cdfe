"""Outputs and gradients of expert-parallel layers, drawn anew for each check: what is wrong, and where."""

from __future__ import annotations

from random import Random
from typing import Any

from torch import Tensor

from dtcourse.course.checks.lesson_21b_expert_parallelism import steps
from dtcourse.course.judging import Answer, Exercise, require_kind

DIAGNOSE = Exercise(
    "diagnose_experts",
    lesson="21b",
    title="What is wrong with this step?",
    takes=("diagnose_experts",),
    target="30 of 30 steps on 2 to 4 ranks, drawn anew each time",
    forbidden=("dtcourse.verify", "dtcourse.models", "dtcourse.expert_parallel"),
)

EACH = 3  # steps with a mistake, and as many healthy ones beside them


def _described(x: Tensor, gate: Tensor, experts: Tensor, k: int, found: Any) -> str:
    return f"A step of {len(x)} ranks with {x.shape[1]} tokens each and {len(experts)} experts"


def _require(answer: Answer, kind: str, hint: str) -> None:
    draw = Random()
    require_kind(
        answer,
        kind,
        hint,
        drawn=lambda one, turn: steps.run_of(one, turn, draw),
        each=EACH,
        describe=_described,
        healthy="Of which loss are the gradients, what is the sum of a token's weights, and how far from equal is "
        "rounding to single precision?",
        example=("mixed rows", 2),
    )


@DIAGNOSE.check("experts' gradients of another scale", points=2)
def check_summed(answer: Answer) -> None:
    """All of them, and nothing else."""
    _require(
        answer,
        "experts summed",
        "By which factor do the experts' gradients differ from one process's?",
    )


@DIAGNOSE.check("a gate that nobody has averaged", points=2)
def check_gate(answer: Answer) -> None:
    """Each rank has another one."""
    _require(
        answer,
        "gate local",
        "Are the gate's gradients equal on all ranks? Whose tokens are in them?",
    )


@DIAGNOSE.check("an exchange without a backward", points=2)
def check_back(answer: Answer) -> None:
    """Outputs and weights are right."""
    _require(
        answer,
        "no way back",
        "What are the gradients of the tokens, and through which experts do those parts come that are missing?",
    )


@DIAGNOSE.check("rows that come back to other tokens", points=2)
def check_mixed(answer: Answer) -> None:
    """On one rank."""
    _require(
        answer,
        "mixed rows",
        "Gradients follow from outputs. On which rank are the outputs wrong already?",
    )


@DIAGNOSE.check("an expert that learns from its own rank alone", points=2)
def check_local(answer: Answer) -> None:
    """The others' tokens gave it no gradient."""
    _require(
        answer, "local expert", "Which expert's gradient is wrong, and is it those of all experts?"
    )
