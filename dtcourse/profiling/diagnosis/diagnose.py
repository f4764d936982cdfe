"""`diagnose(run)`: the causes of lost time in a recorded run, the costliest first, or that there is none.

    run = launch(train, 4, backend="ring", record=True, devices=..., network=...)
    print(diagnose(run))

Nothing is read from the name of a function or the number of a rank: causes come from events, from what the recorder
notes of messages, and from counters (FLOPs and bytes of each rank, where devices are emulated). Mark the steps
(`with events.span("step", "step"): ...`, or a Monitor), or what came before the first one counts too.

What it cannot tell is in `.unknown`: links where no message is recorded (torch's own backends show a collective only as
a whole), unequal devices and unequal work where nobody counted, ranks that are missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dtcourse.events import timeline_of
from dtcourse.plural import plural
from dtcourse.profiling.diagnosis.causes import CAUSES, Cause
from dtcourse.profiling.diagnosis.critical_path import Segment
from dtcourse.profiling.diagnosis.evidence import Evidence

LEAST = 0.02  # of the window: what costs less is not named


@dataclass(frozen=True)
class Diagnosis:
    """What was found; printed, it is a sentence for each cause, and one for the critical path.

    causes:  the costliest first
    seconds: the window's
    path:    the critical path through it
    idle:    the part of all ranks' time in the window in which their main lanes waited: in a pipeline, its bubble
    unknown: what the recording does not tell, a sentence each
    """

    causes: list[Cause]
    seconds: float
    path: list[Segment] = field(repr=False)
    idle: float = 0.0
    unknown: list[str] = field(default_factory=list)

    @property
    def first(self) -> str:
        """The kind of the costliest cause, or "nothing"."""
        return self.causes[0].kind if self.causes else "nothing"

    @property
    def sentence(self) -> str:
        """The costliest cause; what else is lost."""
        if not self.causes:
            return f"Nothing found that costs {LEAST:.0%} of the {_ms(self.seconds)} or more."
        parts = [
            f"{one.says} (up to {_ms(one.seconds)} of {_ms(self.seconds)})" for one in self.causes
        ]
        text = "; besides, ".join(parts)
        return text[0].upper() + text[1:] + "."

    @property
    def path_sentence(self) -> str:
        """What the critical path consists of, and how long the ranks wait beside it."""
        if not self.path:
            return "There is no critical path: nothing is recorded."
        kinds: dict[str, float] = {}
        for segment in self.path:
            where = (
                f"rank {segment.rank} computing"
                if segment.kind == "compute"
                else segment.kind + "s"
            )
            if segment.kind == "unknown":
                where = "waits for what is not recorded"
            kinds[where] = kinds.get(where, 0.0) + segment.seconds
        total = sum(kinds.values())
        parts = sorted(kinds.items(), key=lambda item: -item[1])
        named = ", ".join(f"{seconds / total:.0%} {where}" for where, seconds in parts[:4])
        return f"The critical path of {_ms(total)} is {named}; beside it ranks wait for {self.idle:.0%} of their time."

    def __str__(self) -> str:
        return " ".join([self.sentence, self.path_sentence, *self.unknown])


def diagnose(run: Any) -> Diagnosis:
    """What costs this run its time.

    run: what launch(..., record=True) returned, or a Timeline

    Raises ValueError for what has no timeline, and for one without events.
    """
    timeline = timeline_of(run)
    if not len(timeline):
        raise ValueError(
            "nothing is recorded in this timeline: launch(..., record=True), and end the ranks' function normally"
        )
    try:
        accounts: Sequence[Any] = run.accounts
    except (AttributeError, ValueError):  # a Timeline alone, or nothing was emulated
        accounts = []
    whole = len(accounts) == len(timeline.ranks)
    evidence = Evidence.of(
        timeline, dict(zip(timeline.ranks, accounts, strict=True)) if whole else None
    )
    found = sorted((cause for look in CAUSES for cause in look(evidence)), key=lambda c: -c.seconds)
    named = [cause for cause in found if cause.seconds >= LEAST * evidence.seconds > 0]
    return Diagnosis(
        named, evidence.seconds, evidence.path, _idle(evidence), _unknown(evidence, run)
    )


def _idle(evidence: Evidence) -> float:
    """The part of the ranks' time in which their main lanes waited."""
    ranks = evidence.timeline.ranks
    all_time = len(ranks) * evidence.seconds
    return sum(map(evidence.waited, ranks)) / all_time if all_time else 0.0


def _unknown(evidence: Evidence, run: Any) -> list[str]:
    """What cannot be told."""
    says = []
    timeline = evidence.timeline
    ranks = timeline.ranks
    expected = range(max([len(run) if hasattr(run, "failures") else 0, *(r + 1 for r in ranks)]))
    if missing := sorted(set(expected) - set(ranks)):
        says.append(
            f"Nothing is recorded of rank {', '.join(map(str, missing))}: what they did is not in this."
        )
    if evidence.matched.alone:
        says.append(
            f"{plural(evidence.matched.alone, 'message or collective', 'messages or collectives')} "
            "lack their other end: the recording breaks off, or belongs to more than one run."
        )
    if not evidence.counted:
        says.append(
            "No operations were counted, so a slow device and more work cannot be told apart."
        )
    if not evidence.matched.messages and len(timeline.of(lane="collectives")):
        says.append("The backend shows collectives as a whole, so no single link can be judged.")
    if not evidence.steps:
        says.append("No step is marked, so what came before the first one counts too.")
    return says


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
