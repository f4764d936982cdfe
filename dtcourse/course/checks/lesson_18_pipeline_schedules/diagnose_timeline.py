"""Four kinds of timelines: which is broken, and why."""

from __future__ import annotations

import random

from dtcourse.course.judging import Answer, Exercise, require_diagnoses
from dtcourse.pipeline_parallel.actions import Schedule
from dtcourse.pipeline_parallel.schedules import one_f_one_b
from dtcourse.pipeline_parallel.simulate import Times, simulate
from dtcourse.pipeline_parallel.zero_bubble import zb_h1

DIAGNOSE = Exercise(
    "diagnose_timeline",
    lesson="18",
    title="Timelines",
    takes=("diagnose_timeline",),
    target="12 of 12 timelines of 2 to 8 ranks",
)

Event = tuple[int, int, str, int, float, float]
Cases = list[tuple[list[Event], tuple[str, int | None]]]


def _events(schedule: Schedule, times: Times, unit: float) -> list[Event]:
    found = simulate(schedule, times)
    events = [
        (rank, one.stage, one.kind, one.micro_batch, start * unit, end * unit)
        for rank, actions in enumerate(schedule)
        for one, start, end in zip(actions, found.starts[rank], found.ends[rank], strict=True)
    ]
    random.shuffle(events)
    return events


def _sizes() -> list[tuple[Schedule, int]]:
    """1F1B on few and on many ranks, and ZB-H1."""
    few, many = random.randint(2, 3), random.randint(5, 8)
    return [
        (one_f_one_b(few, random.randint(4, 6)), few),
        (one_f_one_b(many, 2 * many), many),
        (zb_h1(4, 8), 4),
    ]


def _units() -> list[float]:
    """Seconds of an action, one for each of the three sizes:
    who takes them for parts of an action meets all of them.
    """
    return random.sample((1e-3, 0.02, 3.0), 3)


def healthy() -> Cases:
    """With messages for nothing, and with slow ones."""
    return [
        (_events(one, Times(1.0, 0.9, 1.1, transfer=transfer), unit), ("healthy", None))
        for (one, _), transfer, unit in zip(_sizes(), (0.0, 0.4, 0.3), _units(), strict=True)
    ]


def _described(events: list[Event]) -> str:
    ranks = 1 + max(event[0] for event in events)
    kind = "ZB-H1" if any(event[2] == "I" for event in events) else "1F1B"
    return f"{kind} on {ranks} ranks"


def _require(answer: Answer, cases: Cases, hint: str) -> None:
    require_diagnoses(
        answer,
        [((events,), right) for events, right in healthy() + cases],
        describe=_described,
        hint=hint,
        healthy="A rank that waits for a message is not ill. In which gaps could it have gone on, and in which not?",
        example=("slow rank", 2),
        shuffled=True,
    )


@DIAGNOSE.check("a slow rank, and not one that waits", points=2)
def check_slow(answer: Answer) -> None:
    """By a fifth and by much."""
    cases: Cases = []
    for (one, ranks), factor, unit in zip(_sizes(), (1.2, 2.0, 1.3), _units(), strict=True):
        slow = random.randrange(ranks)
        each = [factor if rank == slow else 1.0 for rank in range(ranks)]
        cases.append(
            (_events(one, Times(each, each, each, transfer=0.1), unit), ("slow rank", slow))
        )
    _require(
        answer,
        cases,
        "How long does one action take on each rank? The gaps are other ranks' fault as often as not.",
    )


@DIAGNOSE.check("sends that block, and not messages that take their time", points=3)
def check_blocking(answer: Answer) -> None:
    """The same latency, on the sender."""
    cases: Cases = [
        (_events(one, Times(transfer=transfer, sender_waits=True), unit), ("sends block", None))
        for (one, _), transfer, unit in zip(_sizes(), (0.05, 0.4, 0.3), _units(), strict=True)
    ]
    _require(
        answer, cases, "Between which two actions of rank 0 has it nothing to wait for from others?"
    )


@DIAGNOSE.check("a gradient that is lost", points=3)
def check_lost(answer: Answer) -> None:
    """A backward, or only its weights' half."""
    cases: Cases = []
    for (one, ranks), unit in zip(_sizes(), _units(), strict=True):
        rank, i = random.randrange(ranks), random.randrange(one.micro_batches)
        kind = "W" if one.name == "ZB-H1" else "B"
        # On rank 0 nobody waits for a backward; on others only a W can be missing and the step still end.
        rank = 0 if kind == "B" else rank
        events = _events(one, Times(transfer=0.1), unit)
        left = [event for event in events if event[:1] + event[2:4] != (rank, kind, i)]
        cases.append((left, ("lost gradient", rank)))
    _require(
        answer, cases, "Each forward has a backward, in one piece or in two. Count both halves."
    )
