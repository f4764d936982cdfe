"""How the bias of a balanced router moves after each step: by which rule, and how far. Really run."""

from __future__ import annotations

from dtcourse.course.checks.lesson_21_mixture_of_experts import balancing
from dtcourse.course.judging import Answer, Exercise, require_near_best, trials
from dtcourse.course.judging.simulated import Simulated

CHOOSE = Exercise(
    "choose_update",
    lesson="21",
    title="Choose how a bias moves",
    takes=("choose_update",),
    target="on 4 streams of tokens a load at most 1.01 times the best choice's; at most 7 of 12 choices measured",
)

MOST = 7  # choices that an answer may try
CHANGES = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
CHOICES: list[trials.Choice] = [(rule, c) for rule in ("sign", "proportional") for c in CHANGES]
# Spread and drift of the experts' popularity, that of every tenth batch besides, and where random numbers begin.
Stream = tuple[float, float, float, int]
# With the best choice, which tests/course/test_choose_update.py finds by running every one.
STEADY: dict[Stream, trials.Choice] = {
    (1.0, 0.0, 0.0, 1): ("proportional", 0.01),
    (0.5, 0.02, 4.0, 2): ("sign", 0.003),
}
DRIFTING: dict[Stream, trials.Choice] = {
    (1.5, 0.05, 0.0, 3): ("proportional", 0.03),
    (1.0, 0.2, 0.0, 5): ("proportional", 0.1),
}


def case(stream: Stream) -> Simulated:
    """A stream of tokens, as an answer gets it."""
    return Simulated(balancing.job, CHOICES, stream, (CHANGES,), MOST)


PRACTICE = case(next(iter(DRIFTING)))


def _require(answer: Answer, cases: dict[Stream, trials.Choice], hint: str) -> None:
    for stream, best in cases.items():
        spread, drift, bursts, _ = stream
        where = f"Popularity of spread {spread:g}, which drifts by {drift:g} per step, and bursts of {bursts:g}"
        tried = case(stream).tried(answer)
        (least,) = case(stream).measured(best)
        (taken,) = trials.require_possible(
            where, tried, best, f"Possible are 'sign' and 'proportional', with one of {CHANGES}."
        )
        require_near_best(where, tried.choice, taken, least, "times the mean load", hint)


@CHOOSE.check("where popularity stays", points=4)
def check_steady(answer: Answer) -> None:
    """But for single batches."""
    _require(
        answer,
        STEADY,
        "What does a bias do that moves far, after a batch that is unlike the others? Which of the two rules moves far "
        "after it, and were both measured with smaller changes as well?",
    )


@CHOOSE.check("where popularity drifts", points=4)
def check_drifting(answer: Answer) -> None:
    """And the bias has to follow."""
    _require(
        answer,
        DRIFTING,
        "How far does a bias come that moves by little, while the tokens change? Were both rules measured with larger "
        "changes as well?",
    )
