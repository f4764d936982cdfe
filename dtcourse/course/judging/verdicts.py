"""What many exercises ask of an answer, in the same words: a diagnosis, a choice near the best one, bytes from others.

An answer of the first two kinds is one function, which is called for several cases. A check holds the cases, their
right diagnoses or their best choices, and the hints.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

from dtcourse.course.judging.framework import Answer
from dtcourse.course.judging.requirements import require
from dtcourse.course.judging.threads import one_thread

NEAR = 1.01  # times what the best choice takes
Diagnosis = tuple[str, Any]  # what is wrong, or "healthy"; where, or None
Case = tuple[tuple[Any, ...], Diagnosis]  # what an answer is given, and what is right


def call_each(
    answer: Answer,
    given: Sequence[Sequence[Any]],
    *,
    shuffled: bool = False,
    timeout: float = 20.0,
) -> list[Any]:
    """What an answer of one function returns for each of `given`, the arguments of its calls, in their order.

    All calls are in one process. Each has copies of its own, so that an answer may write to what it is given.

    shuffled: the calls come in any order, so that a case's place tells nothing
    timeout: seconds for all calls together

    Raises CheckFailed as Answer.call does.
    """
    order = list(range(len(given)))
    if shuffled:
        random.shuffle(order)
    said = answer.call(_called, [tuple(given[place]) for place in order], timeout=timeout)
    by_place = dict(zip(order, said, strict=True))
    return [by_place[place] for place in range(len(given))]


def _called(function: Callable[..., Any], given: list[tuple[Any, ...]]) -> list[Any]:
    return [function(*deepcopy(arguments)) for arguments in given]


def require_diagnoses(
    answer: Answer,
    cases: Sequence[Case],
    *,
    describe: Callable[..., str],
    hint: str,
    healthy: str,
    example: Diagnosis,
    shuffled: bool = False,
    all_healthy: str = "",
) -> None:
    """That an answer's diagnosis of each case is the right one; see require_diagnosis for the sentence.

    cases: (arguments, right diagnosis) of each
    describe: a case's arguments in words, as "A run of 3 ranks"
    shuffled: see call_each; the sentence is still about the first case of `cases` that is wrong
    all_healthy: what the hint says besides to an answer that calls every case healthy, as a mistake in its
                 comparisons may
    """
    said = call_each(answer, [given for given, _ in cases], shuffled=shuffled)
    if all_healthy and all(
        isinstance(got, (list, tuple)) and got[:1] == type(got)(["healthy"]) for got in said
    ):
        hint = f"{hint} {all_healthy}"
    for (given, right), got in zip(cases, said, strict=True):
        require_diagnosis(describe(*given), got, right, hint, healthy, example)


def require_kind(
    answer: Answer,
    kind: str,
    hint: str,
    *,
    drawn: Callable[[str, int], Case],
    each: int,
    describe: Callable[..., str],
    healthy: str,
    example: Diagnosis,
    all_healthy: str = "",
) -> None:
    """That an answer's diagnosis of `each` cases of one kind is right, and of as many healthy ones, in any order.

    drawn: the case of a kind ("healthy" is one) and a number below `each`; draws another one whenever it is called
    describe, hint, healthy, example, all_healthy: see require_diagnoses
    """
    with one_thread():
        cases = [drawn(one, turn) for one in ("healthy", kind) for turn in range(each)]
    require_diagnoses(
        answer,
        cases,
        describe=describe,
        hint=hint,
        healthy=healthy,
        example=example,
        shuffled=True,
        all_healthy=all_healthy,
    )


def place(turn: int, first: int, last: int) -> int:
    """Where a mistake is drawn: at the first place in turn 0, at the last in turn 1, then anywhere between them."""
    return (first, last)[turn] if turn < 2 else random.randint(first, last)


def require_diagnosis(
    case: str, got: Any, right: Diagnosis, hint: str, healthy: str, example: Diagnosis
) -> None:
    """That `got`, what is wrong and where, is `right`. The sentence gives `hint`,
    or `healthy` where all is right there. Several places may be a list or a tuple.

    case: what was looked at, as "A run of 3 ranks"
    """
    require(
        isinstance(got, (list, tuple)) and len(got) == 2,
        f"A diagnosis is two things, such as {example!r}; got {got!r}.",
    )
    said = tuple(tuple(one) if isinstance(one, list) else one for one in got)
    require(
        said == right,
        f"{case}, which is {right!r}; you say {said!r}. {healthy if right[0] == 'healthy' else hint}",
    )


def require_word(case: str, got: Any, right: str, words: Sequence[str], hint: str) -> None:
    """That `got`, a diagnosis that is one of `words`, is `right`. The sentence gives `hint`.

    case: what was looked at, as "A region on 3 ranks"
    """
    require(got in words, f"A diagnosis is one of {', '.join(map(repr, words))}; got {got!r}.")
    require(got == right, f"{case}, which is {right!r}; you say {got!r}. {hint}")


def require_near_best(
    case: str, choice: Any, taken: float, least: float, unit: str, hint: str, near: float = NEAR
) -> None:
    """That a choice takes at most `near` times what the best one does, both in `unit`."""
    require(
        taken <= near * least,
        f"{case}: {tuple(choice)!r} takes {taken:.4g} {unit}, and the best choice takes {least:.4g} {unit}. {hint}",
    )


def require_received(where: str, came: int, least: int) -> None:
    """That a rank receives what others alone have for it: what came by a way on which nothing is counted did not.

    where: which rank, in words
    came, least: bytes that it received, and that any right answer receives
    """
    require(
        came >= least,
        f"{where} receives {came:,} bytes, and a right answer receives at least {least:,} there, which only others "
        "have. Where does the rest come from?",
    )
