"""Records of steps with many micro-batches, drawn anew for each check: is the update the batch's, and what was kept?"""

from __future__ import annotations

from random import Random

from dtcourse.course.checks.lesson_17b_stash_and_accumulation import updates
from dtcourse.course.checks.lesson_17b_stash_and_accumulation.updates import Gradients
from dtcourse.course.judging import Answer, Exercise, require_kind
from dtcourse.plural import plural

DIAGNOSE = Exercise(
    "diagnose_update",
    lesson="17b",
    title="What is wrong with this update?",
    takes=("diagnose_update",),
    target="30 of 30 steps with 1 to 7 micro-batches, drawn anew each time",
    forbidden=("dtcourse.verify",),
)

EACH = 3  # steps with a mistake, and as many healthy ones beside them


def _described(
    tokens: list[int], alone: list[Gradients], update: Gradients, memory: list[tuple[str, int]]
) -> str:
    return f"A step with {plural(len(tokens), 'micro-batch', 'micro-batches')} of {tokens} tokens"


def _require(answer: Answer, kind: str, hint: str) -> None:
    draw = Random()
    require_kind(
        answer,
        kind,
        hint,
        drawn=lambda one, turn: updates.run_of(one, turn, draw),
        each=EACH,
        describe=_described,
        healthy="What does each micro-batch count, what does a rank hold besides activations, and how far from equal "
        "is rounding?",
        example=("one missing", 2),
    )


@DIAGNOSE.check("micro-batches that count alike", points=2)
def check_alike(answer: Answer) -> None:
    """Each 1/m, whatever it holds."""
    _require(
        answer,
        "weighed alike",
        "How much of the batch's mean is a micro-batch of one token, and how much of this update?",
    )


@DIAGNOSE.check("a sum where the mean belongs", points=1)
def check_summed(answer: Answer) -> None:
    """m times too large where all are of one size."""
    _require(
        answer,
        "summed",
        "What is the sum of the micro-batches' own gradients, whatever they hold?",
    )


@DIAGNOSE.check("a micro-batch that is missing", points=2)
def check_missing(answer: Answer) -> None:
    """Which one?"""
    _require(
        answer,
        "one missing",
        "What is between the update that there should be and this one, and whose gradient has that direction?",
    )


@DIAGNOSE.check("other random numbers when computed again", points=2)
def check_numbers(answer: Answer) -> None:
    """No sum of these gradients."""
    _require(
        answer,
        "other random numbers",
        "Is this update any sum of the micro-batches' own gradients? What else could a backward have seen?",
    )


@DIAGNOSE.check("activations that are never freed", points=2)
def check_never_freed(answer: Answer) -> None:
    """The right update, and more memory with each backward, or as much as before."""
    _require(
        answer,
        "never freed",
        "The update is right. What should a rank still hold of a micro-batch after its backward?",
    )
