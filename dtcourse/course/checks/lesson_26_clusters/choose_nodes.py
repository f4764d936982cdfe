"""Nodes, spot or not, and how often to save: the cheapest run that is done in time."""

from __future__ import annotations

import math
from functools import cache

from dtcourse.course.judging import Answer, Exercise, call_each, require, require_near_best

CHOOSE = Exercise(
    "choose_nodes",
    lesson="26",
    title="Choose nodes, spot, and how often to save",
    takes=("choose_nodes",),
    target="a run within the deadline at most 1.01 times as dear as the best one, on 9 jobs",
)

# hours of work on one node, share that does not speed up, deadline in hours, most nodes, price of spot over on-demand,
# hours between losses of an on-demand node, and of a spot node, minutes of a save, minutes of a restart
Work = tuple[float, float, float, int, float, float, float, float, float]
ROOMY: tuple[Work, ...] = (
    (400.0, 0.002, 500.0, 16, 0.40, 2000.0, 48.0, 2.0, 8.0),
    (200.0, 0.0, 150.0, 8, 0.60, 1000.0, 100.0, 1.0, 5.0),
    (90.0, 0.01, 60.0, 8, 0.35, 3000.0, 24.0, 0.5, 4.0),
)
TIGHT: tuple[Work, ...] = (
    (400.0, 0.002, 40.0, 32, 0.50, 2000.0, 60.0, 2.0, 8.0),
    (1000.0, 0.001, 48.0, 64, 0.60, 4000.0, 100.0, 3.0, 10.0),
    (300.0, 0.004, 24.0, 32, 0.45, 1500.0, 40.0, 1.0, 6.0),
)
COSTLY: tuple[Work, ...] = (
    (300.0, 0.001, 30.0, 32, 0.60, 2000.0, 4.0, 3.0, 10.0),
    (500.0, 0.002, 60.0, 32, 0.70, 1000.0, 20.0, 6.0, 15.0),
    (120.0, 0.0, 20.0, 16, 0.80, 500.0, 30.0, 5.0, 20.0),
)
INTERVALS = range(1, 1441)  # minutes


def hours_and_bill(work: Work, nodes: int, spot: bool, minutes: int) -> tuple[float, float]:
    """Expected hours of the run, and its bill in hours of one on-demand node."""
    total, serial, _, _, price, on_demand, taken, save, restart = work
    alone = total * (serial + (1 - serial) / nodes)
    between = (taken if spot else on_demand) / nodes
    exponent = (minutes + save) / 60 / between
    if exponent > 50:
        return math.inf, math.inf
    one = between * math.exp(restart / 60 / between) * math.expm1(exponent)
    hours = alone / (minutes / 60) * one
    return hours, hours * nodes * (price if spot else 1.0)


@cache
def best(work: Work) -> tuple[float, int, bool, int]:
    """The least bill within the deadline, and its choice."""
    _, _, deadline, most, *_ = work
    found = []
    for nodes in range(1, most + 1):
        for spot in (False, True):
            for minutes in INTERVALS:
                hours, bill = hours_and_bill(work, nodes, spot, minutes)
                if hours <= deadline:
                    found.append((bill, nodes, spot, minutes))
    return min(found)


def _require(answer: Answer, works: tuple[Work, ...], hint: str) -> None:
    for work, got in zip(works, call_each(answer, works), strict=True):
        total, serial, deadline, most, price, on_demand, taken, save, restart = work
        where = (
            f"{total:g} h of work ({serial:g} serial), {deadline:g} h, at most {most} nodes, spot at {price:g}, a "
            f"loss in {on_demand:g} h or {taken:g} h, {save:g} min per save, {restart:g} min per restart"
        )
        right = isinstance(got, (list, tuple)) and len(got) == 3
        right = right and type(got[0]) is int and 1 <= got[0] <= most
        right = right and type(got[1]) is bool and type(got[2]) is int and got[2] in INTERVALS
        require(
            right,
            f"{where}: a choice is (nodes, spot, minutes), such as (4, True, 30), of 1 to {most} nodes and 1 to "
            f"1,440 minutes; got {got!r}.",
        )
        hours, bill = hours_and_bill(work, *got)
        require(
            hours <= deadline,
            f"{where}: {tuple(got)!r} takes {hours:.4g} hours. How long is a segment with its save, and what do "
            "losses add?",
        )
        least, *_ = best(work)
        require_near_best(where, got, bill, least, "node-hours", hint)


@CHOOSE.check("where there is time", points=3)
def check_roomy(answer: Answer) -> None:
    """Few nodes: each further one is lost more often, and the serial part is paid on all."""
    _require(answer, ROOMY, "What does one node more cost, where there is time?")


@CHOOSE.check("where the deadline decides", points=2)
def check_tight(answer: Answer) -> None:
    """As many nodes as it takes."""
    _require(
        answer,
        TIGHT,
        "Which is the smallest number of nodes that is in time, with and without spot?",
    )


@CHOOSE.check("where losses are dear", points=3)
def check_costly(answer: Answer) -> None:
    """Spot does not always pay."""
    _require(answer, COSTLY, "Have you compared spot and on-demand, each with its best interval?")
