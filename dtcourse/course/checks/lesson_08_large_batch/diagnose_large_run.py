"""Logs of short runs with a large batch, drawn anew each time: which one does not do what its plan says, and how?"""

from __future__ import annotations

from dtcourse.course.checks.lesson_08_large_batch.large_runs import KINDS, drawn
from dtcourse.course.judging import Answer, Exercise, call_each, require_word
from dtcourse.course.judging.threads import one_thread

DIAGNOSE = Exercise(
    "diagnose_large_run",
    lesson="08",
    title="What is wrong with a large run?",
    takes=("diagnose_large_run",),
    target="48 of 48 runs, of 3 to 6 ranks, drawn anew each time",
    forbidden=("dtcourse.course.checks", "dtcourse.course.judging"),
)

HEALTHY = (
    "How far do ranks' norms differ there, what is the learning rate of each step, and does a step cut the noise "
    "by much?"
)
EACH = 4  # runs of a kind, and as many healthy ones beside them


def _case(kind: str) -> tuple[object, ...]:
    """What an answer is given of one run."""
    plan, log = drawn(kind)
    return log.loss, log.own, log.taken, log.moved, plan.told()


def _require(answer: Answer, kind: str, hint: str) -> None:
    rights = ["healthy"] * EACH + [kind] * EACH
    with one_thread():
        given = [_case(right) for right in rights]
    said = call_each(answer, given, shuffled=True)
    for (_, own, *_), right, got in zip(given, rights, said, strict=True):
        assert isinstance(own, list)
        case = f"A run of {len(own[0])} ranks and {len(own)} steps"
        words = ("healthy", *KINDS)
        require_word(case, got, right, words, HEALTHY if right == "healthy" else hint)


@DIAGNOSE.check("two ranks with the same samples", points=2)
def check_same(answer: Answer) -> None:
    """Their loaders have the same seed, and the others' do not."""
    _require(answer, "same samples", "Two ranks there have one gradient. In how many of the steps?")


@DIAGNOSE.check("summed instead of averaged", points=2)
def check_summed(answer: Answer) -> None:
    """The optimizer took the sum of the ranks' gradients."""
    _require(
        answer, "summed", "How long can the mean of gradients be, beside the gradients themselves?"
    )


@DIAGNOSE.check("a learning rate that was not scaled", points=2)
def check_not_scaled(answer: Answer) -> None:
    """That of the small batch, in each step."""
    _require(
        answer,
        "not scaled",
        "How far do the weights move there for a gradient's length, and what had the plan wanted in the last steps?",
    )


@DIAGNOSE.check("a warm-up that counts steps", points=2)
def check_warmup(answer: Answer) -> None:
    """As many steps as the small batch had for it."""
    _require(
        answer,
        "warm-up in steps",
        "Where does the learning rate reach its highest value there, and after how many samples should it?",
    )


@DIAGNOSE.check("beyond the largest learning rate", points=2)
def check_unstable(answer: Answer) -> None:
    """The plan was followed, and the rule does not hold so far."""
    _require(
        answer,
        "unstable",
        "What does the loss do there? While it rises, the gradient's length tells of the steps and not of the samples.",
    )


@DIAGNOSE.check("a batch far above the noise scale", points=2)
def check_too_large(answer: Answer) -> None:
    """Half the batch would need few steps more."""
    _require(
        answer,
        "too large",
        "How large is the noise there beside the signal, from all steps together, and how many steps does half the "
        "batch need by that?",
    )
