"""Logs of rounds of secure aggregation, drawn anew each time: what did a server ask for, or a client send?"""

from __future__ import annotations

import random
from typing import Any

from dtcourse.course.judging import Answer, Exercise, place, require_kind

DIAGNOSE = Exercise(
    "diagnose_rounds",
    lesson="28b",
    title="What did the server ask for?",
    takes=("diagnose_rounds",),
    target="32 of 32 logs of 3 to 5 rounds and 6 to 10 clients, drawn anew each time, and shuffled",
)

EACH = 4  # logs with a mistake, and as many healthy ones beside them
Round = dict[str, Any]
Case = tuple[tuple[int, float, list[Round]], tuple[str, Any]]


def _key() -> str:
    return f"{random.getrandbits(64):016x}"


def _round(clients: list[int], threshold: int, max_norm: float) -> Round:
    """One as it is to be: some clients drop out before they send, and some after; threshold answer at least."""
    sent = sorted(random.sample(clients, random.randint(threshold + 1, len(clients))))
    dropped = [u for u in clients if u not in sent]
    norms = {u: max_norm * random.choice([1.0, random.uniform(0.1, 0.999)]) for u in sent}
    return {
        "keys": {u: _key() for u in clients},
        "norms": norms,
        "asked": {u: (list(sent), list(dropped)) for u in sent},
        "answered": sorted(random.sample(sent, random.randint(threshold, len(sent)))),
    }


def _forge(one: Round, clients: list[int], victim: int, liars: int, answered: list[int]) -> None:
    """All clients have sent; the first `liars` of those that answer hear that the victim has not."""
    others = [u for u in clients if u != victim]
    told = [u for u in answered if u != victim][:liars]
    one["norms"] |= {u: one["norms"].get(u, min(one["norms"].values())) for u in clients}
    one["norms"] = dict(sorted(one["norms"].items()))
    one["asked"] = {u: (others, [victim]) if u in told else (list(clients), []) for u in clients}
    one["answered"] = sorted(answered)


def drawn(kind: str, turn: int) -> Case:
    """A log with a mistake of that kind, and its diagnosis."""
    num = random.randint(6, 10)
    clients = sorted(random.sample(range(40), num))
    threshold = random.randint(2 if turn else 3, num // 2)
    max_norm = random.uniform(0.5, 20.0)
    rounds = [_round(clients, threshold, max_norm) for _ in range(random.randint(3, 5))]
    at = place(turn, 0, len(rounds) - 1)
    where: Any = random.choice(clients)
    one = rounds[at]
    answered = random.sample(clients, num)
    if kind == "uncovered":
        # first just enough shares of one secret, then of the other, of which the victim's own is one
        liars = place(turn, threshold, num - threshold)
        _forge(one, clients, where, liars, answered)
    elif kind == "reused":
        last = len(rounds) - 1
        pair = sorted(random.sample(range(len(rounds)), 2))
        first, at = ((0, last), (last - 1, last))[turn] if turn < 2 else pair
        rounds[at]["keys"][where] = rounds[first]["keys"][where]
    elif kind == "unclipped":
        where = random.choice(list(one["norms"]))
        one["norms"][where] = max_norm * random.uniform(1.05, 4.0)
        if turn == 0:  # it has sent, and drops out then
            others = [u for u in one["norms"] if u != where]
            one["answered"] = sorted(random.sample(others, random.randint(threshold, len(others))))
    elif kind == "too few":
        where = at
        one["answered"] = sorted(
            random.sample(
                sorted(one["norms"]),
                (threshold - 1, 0)[turn] if turn < 2 else random.randint(0, threshold - 1),
            )
        )
    elif turn % 2:
        # lists that differ, and one share too few of one of the two secrets: nobody is uncovered
        if turn == 1:
            _forge(one, clients, where, threshold - 1, answered)
        else:  # enough have heard that the victim is gone, and one too few of these answer
            liars = random.randint(threshold, num - threshold)
            _forge(one, clients, where, liars, answered)
            told = [u for u in answered if u != where][:liars]
            one["answered"] = sorted(set(clients) - set(told[threshold - 1 :]))
    return (threshold, max_norm, rounds), (kind, None if kind == "healthy" else where)


def _described(threshold: int, max_norm: float, rounds: list[Round]) -> str:
    return (
        f"A log of {len(rounds)} rounds and {len(rounds[0]['keys'])} clients with a threshold of {threshold} and "
        f"vectors of length {max_norm:.3g} at most"
    )


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_kind(
        answer,
        kind,
        hint,
        drawn=drawn,
        each=EACH,
        describe=_described,
        healthy="How many shares give a secret back, whose have come to the server, and may a vector be exactly as "
        "long as is allowed?",
        example=("unclipped", 3),
    )


@DIAGNOSE.check("a client that is uncovered", points=3)
def check_uncovered(answer: Answer) -> None:
    """By two kinds of lists, each of which alone is in order."""
    _require(
        answer,
        "uncovered",
        "Two secrets hide one vector. Of which client, and in which round, have enough shares of both come to the "
        "server?",
    )


@DIAGNOSE.check("a key that is used twice", points=2)
def check_reused(answer: Answer) -> None:
    """In two rounds, next to each other or not."""
    _require(
        answer,
        "reused",
        "Equal keys make equal masks. Is each client's key another one in all of the rounds?",
    )


@DIAGNOSE.check("a vector that is too long", points=2)
def check_unclipped(answer: Answer) -> None:
    """The noise was made for a shorter one."""
    _require(
        answer, "unclipped", "How long may a vector be that is masked, and which one is longer?"
    )


@DIAGNOSE.check("too few answers", points=1)
def check_few(answer: Answer) -> None:
    """The sum is not to be had."""
    _require(
        answer,
        "too few",
        "How many answers does the server need to take the masks off, and how many have come?",
    )
