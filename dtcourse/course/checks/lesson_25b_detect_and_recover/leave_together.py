"""A training loop that saves, or saves and leaves, after one step on all ranks, whichever rank hears a signal."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from dtcourse.course.judging import Answer, Exercise, require, require_received

LEAVE = Exercise(
    "leave_together",
    lesson="25b",
    title="Saved, or left, after one step",
    takes=("leave_together",),
    target="all ranks after the same step, in 14 runs of 3 ranks; at most 16 bytes sent per rank for each time that "
    "the ranks ask each other",
    forbidden=("dtcourse.fault_tolerance", "dtcourse.parameters"),
)

RANKS, LAST = 3, 8
SAVE, GO = "SIGURG", "SIGTERM"
Signals = dict[str, list[tuple[int, int]]]  # its name: [(rank, step in which it comes)]
ROOM = 16  # bytes


def _session(
    leave_together: Callable[..., Any], every: int, in_step: Signals, in_save: Signals
) -> dict[str, Any]:
    """On each rank: what it did, and what it left behind. in_save: signals that come while that step is saved."""
    import torch
    import torch.distributed as dist

    from dtcourse.collectives import traffic

    rank, done, own = dist.get_rank(), [], [0, 0]

    def together() -> None:
        """A step, and a save, is a matter of all ranks."""
        with traffic.counting() as mine:
            dist.all_reduce(torch.ones(4))
        own[0] += mine.bytes_sent()
        own[1] += mine.bytes_received()

    def hear(signals: Signals, number: int) -> None:
        for name, places in signals.items():
            if (rank, number) in places:
                os.kill(os.getpid(), getattr(signal, name))

    def step(number: int) -> None:
        together()
        hear(in_step, number)
        done.append(("step", number))

    def save(number: int) -> None:
        together()
        hear(in_save, number)
        done.append(("save", number))

    numbers = (signal.SIGTERM, signal.SIGURG)
    before = [signal.getsignal(number) for number in numbers]
    with traffic.counting() as counted:
        returned = leave_together(step, save, LAST, every)
    after = [signal.getsignal(number) for number in numbers]
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)
    return {
        "returned": returned,
        "steps": [n for what, n in done if what == "step"],
        "saves": [n for what, n in done if what == "save"],
        "tidy": after == before,
        "bytes": counted.bytes_sent() - own[0],
        "received": counted.bytes_received() - own[1],
    }


def _right(every: int, in_step: Signals, in_save: Signals) -> tuple[int, list[int]]:
    """(the last step, the steps that are saved)."""
    waiting: set[str] = set()
    saves = []
    for number in range(1, LAST + 1):
        waiting |= {name for name, places in in_step.items() if number in [n for _, n in places]}
        if number % every == 0 and waiting:
            saves.append(number)
            if GO in waiting:
                return number, saves
            waiting = {name for name, places in in_save.items() if number in [n for _, n in places]}
    return LAST, saves


def _in_words(signals: Signals, when: str) -> list[str]:
    return [
        f"{name} comes to rank {rank} {when} {step}"
        for name, places in signals.items()
        for rank, step in places
    ]


def _require(
    answer: Answer, every: int, in_step: Signals, in_save: Signals, hint: str
) -> list[dict[str, Any]]:
    case = (
        ", ".join(_in_words(in_step, "in step") + _in_words(in_save, "while it saves step"))
        or "no signal comes"
    )
    case += f"; the ranks ask each other after every {every}. step" if every > 1 else ""
    how = {"backend": "ring", "record": True, "timeout": 10.0}
    run = answer.run(_session, RANKS, every, in_step, in_save, **how)
    last, saves = _right(every, in_step, in_save)
    for rank in range(RANKS):
        got = run[rank]
        require(
            got["steps"] == list(range(1, last + 1)) and got["saves"] == saves,
            f"{case}: rank {rank} takes the steps {got['steps']} and saves after {got['saves']}; it should take 1 to "
            f"{last}, and save after {saves}. {hint}",
        )
        require(
            got["returned"] == last,
            f"{case}: rank {rank} returns {got['returned']!r}, and its last step was {last}.",
        )
    return [run[rank] for rank in range(RANKS)]


@LEAVE.check("one rank is told to leave", points=3)
def check_leave(answer: Answer) -> None:
    """Any rank, at any step; also none."""
    hint = "Who knows of the signal after this step, and by what do the others decide?"
    for every, signals in ((1, {GO: [(0, 3)]}), (1, {GO: [(2, 5)]}), (3, {GO: [(1, 4)]}), (1, {})):
        _require(answer, every, signals, {}, hint)


@LEAVE.check("a save, and on it goes", points=2)
def check_save(answer: Answer) -> None:
    """As often as it is asked for."""
    hint = "What is left of a wish when it has been fulfilled, and does one wish on two ranks make it another?"
    for every, signals in (
        (1, {SAVE: [(1, 2)]}),
        (2, {SAVE: [(0, 1), (2, 6)]}),
        (4, {SAVE: [(0, 2), (1, 3)]}),
    ):
        _require(answer, every, signals, {}, hint)


@LEAVE.check("both, and while a save is under way", points=3, needs=("check_leave", "check_save"))
def check_both(answer: Answer) -> None:
    """Nothing that was heard is forgotten."""
    for signals in ({SAVE: [(0, 3)], GO: [(2, 4)]}, {SAVE: [(2, 4)], GO: [(0, 3)]}):
        _require(answer, 2, signals, {}, "Which of the two wishes wins, if both are there?")
    hint = "What becomes of a signal that comes after the ranks have asked each other, and before the next step?"
    for every, signals, late in (
        (1, {SAVE: [(0, 2)]}, {GO: [(1, 2)]}),
        (2, {SAVE: [(2, 2)]}, {SAVE: [(2, 2)]}),
        (1, {SAVE: [(0, 3), (1, 4)]}, {SAVE: [(2, 4)]}),
    ):
        _require(answer, every, signals, late, hint)


@LEAVE.check("few bytes, and nothing left behind", points=2, needs=("check_leave", "check_save"))
def check_cost(answer: Answer) -> None:
    """The handlers of before come back."""
    for every, signals in ((2, {}), (2, {GO: [(1, 5)]})):
        ranks = _require(answer, every, signals, {}, "")
        asked = (len(ranks[0]["steps"])) // every
        for rank, got in enumerate(ranks):
            require(
                got["bytes"] <= ROOM * asked,
                f"Rank {rank} has asked the others {asked} times, and sent {got['bytes']:g} bytes for it; "
                f"{ROOM} each time are enough. How many bits does a rank have to say, and how often?",
            )
            require_received(f"Rank {rank}", got["received"], asked)  # a byte each time
            require(
                got["tidy"],
                f"Rank {rank} has another handler of SIGTERM or SIGURG than before: what does the next SIGTERM do to "
                "a process that trains no more?",
            )
