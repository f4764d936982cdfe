"""How the bias of a balanced router moves after each step: by which rule, and how far. Really run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

from dtcourse.course.checks.lesson_21_mixture_of_experts import balancing
from dtcourse.course.judging import Answer, Exercise, require_near_best, trials
from dtcourse.course.judging.simulated import Simulated
from dtcourse.course.judging.trials import Choice

CHOOSE = Exercise(
    "choose_update",
    lesson="21",
    title="Choose how a bias moves",
    takes=("choose_update",),
    target="on 4 streams of tokens a load at most 1.01 times the best choice's; at most 7 of 12 choices measured",
)

MOST = 7  # choices that an answer may try
CHANGES = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
RULES = ("sign", "proportional")
CHOICES: list[Choice] = [(rule, change) for rule in RULES for change in CHANGES]
CLEAR = 1.015  # times the best choice's load: with the other rule it is more
# Spread and drift of the experts' popularity, that of every tenth batch besides, and where random numbers begin.
Stream = tuple[float, float, float, int]
# Of each of two streams: the rule that is best, and between what spread, drift and bursts are drawn.
Kind = tuple[str, tuple[float, float], tuple[float, float], tuple[float, float]]
STEADY: tuple[Kind, ...] = (
    ("proportional", (0.8, 2.0), (0.0, 0.005), (0.0, 0.0)),
    ("sign", (0.4, 1.0), (0.0, 0.02), (2.0, 8.0)),
)
DRIFTING: tuple[Kind, ...] = (
    ("proportional", (0.6, 2.0), (0.03, 0.25), (0.0, 0.0)),
    ("sign", (0.3, 0.8), (0.06, 0.2), (1.0, 4.0)),
)


@cache
def loads(stream: Stream) -> tuple[float, ...]:
    """With each of CHOICES, on these tokens."""
    return tuple(balancing.loads(CHOICES, *stream))


def run(choice: Choice, *stream: Any) -> tuple[float]:
    """The busiest expert's pairs over the mean's."""
    return (loads(stream)[CHOICES.index(choice)],)


def case(stream: Stream) -> Simulated:
    """A stream of tokens, as an answer gets it."""
    return Simulated(run, CHOICES, stream, (CHANGES,), MOST, beforehand=True)


def drawn(kinds: Sequence[Kind]) -> list[Stream]:
    """A stream of each kind, of which a search can find the best choice."""
    found = []
    for rule, spread, drift, bursts in kinds:
        while True:
            popularity = random.uniform(*spread), random.uniform(*drift), random.uniform(*bursts)
            stream = (*popularity, random.randrange(2**31))
            if _can_be_searched(rule, stream):
                break
        found.append(stream)
    return found


def _can_be_searched(rule: str, stream: Stream) -> bool:
    """Whether `rule` is clearly best on this stream, with the middle changes too; each rule's loads have one valley.

    These lie far enough from the smallest change: seven tries are enough to walk into both from 0.01.
    """
    of = {one: loads(stream)[RULES.index(one) * len(CHANGES) :][: len(CHANGES)] for one in RULES}
    (other,) = set(RULES) - {rule}
    least = {one: of[one].index(min(of[one])) for one in RULES}
    return (
        min(of[other]) > CLEAR * min(of[rule])
        and min(of[rule][2:5]) < min(of[other][2:5])
        and all(_has_one_valley(of[one]) for one in RULES)
        and min(least.values()) >= 2
        and sum(least.values()) >= 5
    )


def _has_one_valley(numbers: Sequence[float]) -> bool:
    at = numbers.index(min(numbers))
    falling, rising = list(numbers[: at + 1]), list(numbers[at:])
    return falling == sorted(falling, reverse=True) and rising == sorted(rising)


PRACTICE = case((1.5, 0.05, 0.0, 3))


def _require(answer: Answer, streams: list[Stream], hint: str) -> None:
    for stream in streams:
        spread, drift, bursts, _ = stream
        where = f"Popularity of spread {spread:.2g}, which drifts by {drift:.2g} per step, and bursts of {bursts:.2g}"
        tokens = case(stream)
        tried = tokens.tried(answer)
        (least,) = tokens.measured(tokens.best())
        (taken,) = trials.require_possible(
            where,
            tried,
            CHOICES[0],
            f"Possible are 'sign' and 'proportional', with one of {CHANGES}.",
        )
        require_near_best(where, tried.choice, taken, least, "times the mean load", hint)


@CHOOSE.check("where popularity stays", points=4)
def check_steady(answer: Answer) -> None:
    """But for single batches."""
    _require(
        answer,
        drawn(STEADY),
        "What does a bias do that moves far, after a batch that is unlike the others? Which of the two rules moves far "
        "after it, and were both measured with smaller changes as well?",
    )


@CHOOSE.check("where popularity drifts", points=4)
def check_drifting(answer: Answer) -> None:
    """And the bias has to follow."""
    _require(
        answer,
        drawn(DRIFTING),
        "How far does a bias come that moves by little, while the tokens change? Were both rules measured with larger "
        "changes as well?",
    )
