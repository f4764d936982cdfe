"""Traces of a step of DDP, run by ranks on the emulated clock and drawn anew each time: what is wrong, and where?"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dtcourse.course.checks.lesson_06_data_parallel import drawn_steps
from dtcourse.course.judging import Answer, Exercise, require_diagnoses

DIAGNOSE = Exercise(
    "diagnose_step",
    lesson="06",
    title="Which step is broken, and where?",
    takes=("diagnose_step",),
    launches=True,
    target="32 of 32 steps of 3 or 4 ranks, run anew each time",
)

HEALTHY = (
    "Which differences are rounding? Does a pause end with a message? Does a layer out of order delay anything? "
    "And is it latency or bytes that the network's time goes into?"
)


def _described(buckets: list[list[int]], events: Any, own: Tensor, used: Tensor) -> str:
    return f"A step of {len(own)} ranks, {own.shape[1]} layers and {len(buckets)} buckets"


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_diagnoses(
        answer,
        drawn_steps.cases(kind),
        describe=_described,
        hint=hint,
        healthy=HEALTHY,
        example=("blocked", 7),
        shuffled=True,
    )


@DIAGNOSE.check("a rank that divides twice", points=1)
def check_twice(answer: Answer) -> None:
    """Before the sum, as all ranks do, and after it."""
    _require(answer, "twice", "Which ranks use the mean, and what does the other one use?")


@DIAGNOSE.check("a rank that does not divide", points=2)
def check_undivided(answer: Answer) -> None:
    """All ranks use the same gradient, and one rank weighs too much in it."""
    _require(
        answer, "undivided",
        "All ranks use one gradient, and it is not the mean. Along whose gradient is it off?",
    )  # fmt: skip


@DIAGNOSE.check("a rank that sends in another order", points=2)
def check_order(answer: Answer) -> None:
    """Two buckets of one size change places on the way."""
    _require(
        answer, "order",
        "No rank uses the mean of these layers. Which rank finds it under another layer's name than the others do?",
    )  # fmt: skip


@DIAGNOSE.check("a hook that waits", points=2)
def check_waits(answer: Answer) -> None:
    """On one rank backward stands still until the message is through."""
    _require(answer, "waits", "Where does backward stand still, on which rank, and until when?")


@DIAGNOSE.check("a bucket that is blocked", points=2)
def check_blocked(answer: Answer) -> None:
    """A layer that forward used earlier than its neighbours in the bucket."""
    _require(
        answer, "blocked", "Which bucket leaves late, and for which of its layers has it waited?"
    )


@DIAGNOSE.check("buckets that are too small", points=2)
def check_small(answer: Answer) -> None:
    """The network pays one latency after the other."""
    _require(
        answer, "small",
        "Of a message's time, what depends on its size and what does not? When would messages of two buckets each "
        "begin, and when would the last one be through?",
    )  # fmt: skip
