"""What came of a run with the monkey, and of many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dtcourse.fault_tolerance.chaos.faults import KINDS
from dtcourse.fault_tolerance.chaos.monkey import Monkey
from dtcourse.fault_tolerance.chaos.plans import MOMENTS


@dataclass(frozen=True)
class Report:
    """Of one run.

    starts:   of the ranks; more than one: it was interrupted
    failures: of them after a failure; the others after a preemption
    kinds:    how often the monkey did each, where it came off
    moments:  at which it struck
    together: strikes of two at once
    damaged:  checkpoints that were found damaged, and passed over
    seconds, useful, repeated: as Goodput has them;  again: steps that were taken in vain
    """

    starts: int
    failures: int
    kinds: dict[str, int]
    moments: dict[str, int]
    together: int
    damaged: int
    seconds: float
    useful: float
    repeated: float
    again: int

    @classmethod
    def of(cls, monkey: Monkey) -> Report:
        """When the run is over."""
        recovery = monkey.recovery
        acts = [act for act in monkey.acts if act.came_off]
        by_strike = Counter(act.strike for act in acts if not act.before)
        good = recovery.goodput
        return cls(
            recovery.starts,
            recovery.failures,
            dict(Counter(act.kind for act in acts)),
            dict(Counter(strike.moment for strike in by_strike)),
            sum(number > 1 for number in by_strike.values()),
            sum(1 for _ in recovery.folder.glob("damaged-*")),
            round(good.seconds, 3),
            round(good.useful, 3),
            round(good.repeated, 3),
            good.again,
        )


def over_all(reports: Sequence[dict[str, Any] | Report]) -> Iterator[str]:
    """In lines: how many were interrupted, how often each kind was met, and the goodput. ValueError for none."""
    if not reports:
        raise ValueError("there is no run to report of: give at least one")
    runs = [one if isinstance(one, Report) else Report(**one) for one in reports]
    interrupted = sum(run.starts > 1 for run in runs)
    yield f"{len(runs)} runs, {interrupted} interrupted ({interrupted / len(runs):.0%})"
    for what, names in (("kinds", KINDS), ("moments", MOMENTS)):
        met = Counter[str]()
        for run in runs:
            met.update(getattr(run, what))
        yield f"  {what}: " + ", ".join(f"{name} {met[name]}" for name in names)
    yield (
        f"  two at once {sum(run.together for run in runs)}, damaged checkpoints passed over "
        + str(sum(run.damaged for run in runs))
    )
    seconds = sum(run.seconds for run in runs)
    useful, repeated = (
        sum(getattr(run, name) for run in runs) / seconds for name in ("useful", "repeated")
    )
    yield (
        f"  goodput {useful:.0%}; {repeated:.0%} in steps taken again "
        f"({sum(run.again for run in runs) / len(runs):.0f} a run); {seconds / len(runs):.1f} s a run"
    )
