"""From a time to the bandwidth of the bus."""

from __future__ import annotations

import random
from typing import Any

from dtcourse.course.judging import Answer, Exercise, require
from dtcourse.plural import plural

BUS = Exercise(
    "bus_bandwidth",
    lesson="05",
    title="From a time to the bandwidth of the bus",
    takes=("bus_bandwidth",),
    target="exact to 1e-9 for 5 collectives at 2 to 64 ranks",
)
_FACTORS = {
    "all_reduce": lambda p: 2 * (p - 1) / p,
    "all_gather": lambda p: (p - 1) / p,
    "reduce_scatter": lambda p: (p - 1) / p,
    "all_to_all": lambda p: (p - 1) / p,
    "broadcast": lambda p: 1.0,
}


def _bus(bus_bandwidth: Any, cases: list[tuple[str, int, float, int]]) -> list[float]:
    return [float(bus_bandwidth(*case)) for case in cases]


@BUS.check("nccl-tests' definition, for each collective", points=4)
def check_bus(answer: Answer) -> None:
    """Named with the numbers that went in."""
    cases = [
        (name, random.randrange(10**6, 10**9), random.uniform(1e-3, 1.0), ranks)
        for name in _FACTORS
        for ranks in (2, 8, 64)
    ]
    for (name, nbytes, seconds, ranks), got in zip(cases, answer.call(_bus, cases), strict=True):
        right = nbytes / seconds * _FACTORS[name](ranks)
        require(
            abs(got / right - 1) < 1e-9,
            f"{name} of {nbytes:,} bytes on {plural(ranks, 'rank')} in {seconds:.3f} s: expected {right / 1e6:,.3f} MB/s, got "
            f"{got / 1e6:,.3f}. How many times does each byte of the vector have to pass a link?",
        )
