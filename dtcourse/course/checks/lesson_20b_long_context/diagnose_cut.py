"""What ranks hold of packed documents, drawn anew for each check: what is wrong, and where."""

from __future__ import annotations

from random import Random

from dtcourse.course.checks.lesson_20b_long_context import cuts
from dtcourse.course.checks.lesson_20b_long_context.cuts import Part
from dtcourse.course.judging import Answer, Exercise, require_kind

DIAGNOSE = Exercise(
    "diagnose_cut",
    lesson="20b",
    title="What is wrong with this cut?",
    takes=("diagnose_cut",),
    target="30 of 30 cuts on 2 to 4 ranks, drawn anew each time",
)

EACH = 3  # cuts with a mistake, and as many healthy ones beside them


def _described(words: list[int], documents: list[int], ranks: list[Part]) -> str:
    return f"{len(words)} words of {documents[-1] + 1} documents on {len(ranks)} ranks"


def _require(answer: Answer, kind: str, hint: str) -> None:
    draw = Random()
    require_kind(
        answer,
        kind,
        hint,
        drawn=lambda one, turn: cuts.run_of(one, turn, draw),
        each=EACH,
        describe=_described,
        healthy="May a rank have tokens in another order, which tokens have no target, and how far from equal is "
        "rounding to single precision?",
        example=("another's places", 2),
    )


@DIAGNOSE.check("targets that were shifted late", points=2)
def check_shifted(answer: Answer) -> None:
    """Some are wrong, and some are lost."""
    _require(
        answer,
        "shifted late",
        "Which word follows each token in the sequence, wherever that word lies?",
    )


@DIAGNOSE.check("targets across documents", points=2)
def check_across(answer: Answer) -> None:
    """A few too many."""
    _require(answer, "across documents", "Which tokens have a target, and should have none?")


@DIAGNOSE.check("a mean of means", points=2)
def check_means(answer: Answer) -> None:
    """Targets are right, and the loss is not."""
    _require(
        answer,
        "mean of means",
        "How much does one token count in this loss, on a rank with few targets?",
    )


@DIAGNOSE.check("places that restart", points=2)
def check_restart(answer: Answer) -> None:
    """On every rank."""
    _require(answer, "places restart", "Where in the sequence is each rank's first token?")


@DIAGNOSE.check("places of another rank's tokens", points=2)
def check_another(answer: Answer) -> None:
    """On one."""
    _require(
        answer,
        "another's places",
        "Which words of the sequence stand at the places that each rank gives?",
    )
