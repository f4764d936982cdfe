"""Traces on clocks that are off and drift: each rank's clock beside rank 0's, from the collectives alone."""

from __future__ import annotations

from typing import Any

from dtcourse.course.checks.lesson_23_profiling.drawn_clocks import Drawn, drawn
from dtcourse.course.judging import Answer, Exercise, call_each, require

CLOCK = Exercise(
    "one_clock",
    lesson="23",
    title="All ranks on rank 0's clock",
    takes=("one_clock",),
    target="to 50 µs from a trace's first moment to its last, for 15 jobs that are drawn anew",
    forbidden=("dtcourse.profiling", "dtcourse.events"),
)

EACH = 3
NEAR = 50e-6


def _require(answer: Answer, hint: str, **how: bool) -> None:
    cases = [drawn(**how) for _ in range(EACH)]
    said = call_each(answer, [(case.traces,) for case in cases], shuffled=True)
    for case, got in zip(cases, said, strict=True):
        _require_clocks(case, got, hint)


def _require_clocks(case: Drawn, got: Any, hint: str) -> None:
    ranks = len(case.traces)
    require(
        isinstance(got, (list, tuple))
        and len(got) == ranks
        and all(isinstance(one, (list, tuple)) and len(one) == 2 for one in got),
        f"A job of {ranks} ranks: the answer is a list of {ranks} pairs (shift, rate), one of each rank; got {got!r}.",
    )
    for rank, (shift, rate) in enumerate(got):
        trace = case.traces[rank]
        for where, own in (("first", trace[0][3]), ("last", trace[-1][4])):
            off = abs(shift + rate * own - case.on_first(rank, own))
            require(
                off <= NEAR,
                f"A job of {ranks} ranks: at the {where} moment of rank {rank}'s trace you are {1e6 * off:,.0f} µs off "
                f"rank 0's clock, and {1e6 * NEAR:.0f} is the most. {hint}",
            )


@CLOCK.check("clocks that are ahead or behind", points=2)
def check_ahead(answer: Answer) -> None:
    """One rank is slow, so it calls late."""
    _require(
        answer,
        "Which moment of a collective is nearly the same for all ranks, and why not the other one?",
    )


@CLOCK.check("clocks that drift", points=2)
def check_drift(answer: Answer) -> None:
    """They run up to 90 millionths fast or slow."""
    _require(
        answer, "Is the difference of two clocks at the end of the trace what it was at its beginning?", drift=True
    )  # fmt: skip


@CLOCK.check("recordings that begin at other moments", points=2)
def check_cut(answer: Answer) -> None:
    """The first row of one is not the first row of another."""
    _require(
        answer, "Which collective in one trace is the same one as in the other: the one at the same place of the list?",
        drift=True, cut=True,
    )  # fmt: skip


@CLOCK.check("ranks that notice late", points=2)
def check_late(answer: Answer) -> None:
    """Now and then by milliseconds."""
    _require(
        answer,
        "Some differences are off by milliseconds, since a rank noticed late. How much do these move your line?",
        drift=True, late=True,
    )  # fmt: skip


@CLOCK.check("a rank that never meets rank 0", points=3)
def check_pairs(answer: Answer) -> None:
    """Collectives of pairs alone."""
    _require(
        answer,
        "Rank 3 has no collective with rank 0. Whose clock does it share moments with, and what is known of that "
        "clock?",
        drift=True, pairs=True,
    )  # fmt: skip
