"""How many spines to buy."""

from __future__ import annotations

import math
from typing import Any

from dtcourse.course.judging import Answer, Exercise, number, require
from dtcourse.plural import plural

SPINES = Exercise(
    "spines_needed",
    lesson="05",
    title="How many spines to buy",
    takes=("spines_needed",),
    target="the least number, exactly, for rates of 25 to 800 Gb/s and ratios of 1 to 4",
)


def _spines(spines_needed: Any, cases: list[tuple[int, float, float, float]]) -> list[int]:
    return [spines_needed(*case) for case in cases]


@SPINES.check("the least number of spines that keeps the promise", points=4)
def check_spines(answer: Answer) -> None:
    """Whole numbers, and no more than needed."""
    cases = [
        (16, 100, 100, 1.0),
        (16, 100, 400, 1.0),
        (48, 25, 100, 3.0),
        (32, 200, 400, 2.0),
        (20, 100, 400, 1.5),
        (3, 400, 800, 4.0),
    ]
    for case, got in zip(cases, map(number, answer.call(_spines, cases)), strict=True):
        hosts, host_rate, uplink_rate, ratio = case
        right = max(1, math.ceil(hosts * host_rate / (uplink_rate * ratio) - 1e-9))
        words = f"{hosts} hosts of {host_rate} Gb/s a leaf, uplinks of {uplink_rate} Gb/s, at most {ratio:g} : 1"
        require(
            isinstance(got, int), f"{words}: a number of switches is a whole number; got {got!r}."
        )
        over = hosts * host_rate / (max(got, 1) * uplink_rate)
        require(
            got >= right,
            f"{words}: with {plural(got, 'spine')} the leaf is oversubscribed {over:.2f} : 1. What goes up when one spine fewer is bought?",
        )
        require(
            got <= right,
            f"{words}: the promise is kept with {plural(got, 'spine')}, and with {right} as well. Which ones could you save?",
        )
