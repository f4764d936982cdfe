"""The checks of lesson 05: a link from measurements, bus bandwidth, the number of spines."""

from __future__ import annotations

import math
import random
from typing import Any

from dtcourse.course.checks import Answer, Exercise, require

# --- 1. a link from measurements -------------------------------------------------------------------------------------

FIT = Exercise(
    "fit_link",
    lesson="05",
    title="Latency and bandwidth from measured times",
    takes=("fit_link",),
    target="both within 10% where every measurement is off by up to 3%, over 5 decades of sizes",
)


def _fit(fit_link: Any, cases: list[tuple[list[int], list[float]]]) -> list[list[float]]:
    return [[float(v) for v in fit_link(sizes, times)] for sizes, times in cases]


def _measurements(alpha: float, bandwidth: float, sizes: list[int], noise: float) -> list[float]:
    return [(alpha + s / bandwidth) * (1 + random.uniform(-noise, noise)) for s in sizes]


def _compare_link(got: list[float], alpha: float, bandwidth: float, tolerance: float) -> None:
    require(
        abs(got[0] / alpha - 1) < tolerance,
        f"made with a latency of {alpha * 1e6:.1f} microseconds, your fit says {got[0] * 1e6:.1f}. "
        "Small messages hold the latency: does an error of 3% of the largest time drown them?",
    )
    require(
        abs(got[1] / bandwidth - 1) < tolerance,
        f"made with {bandwidth / 1e6:,.1f} MB/s, your fit says {got[1] / 1e6:,.1f}. "
        "Is part of the largest message's time latency? And is it bytes a second, not seconds a byte?",
    )


@FIT.check("exact measurements give the exact link", points=2)
def check_exact(answer: Answer) -> None:
    """Also where no message is small enough to be latency alone."""
    links = [(50e-6, 1e9), (20e-3, 10e6), (2e-3, 1e8)]
    sizes = [[2**k for k in range(10, 27, 2)], [2**16, 2**18, 2**20], [2**17, 2**18, 2**19]]
    cases = [(s, _measurements(a, b, s, 0.0)) for (a, b), s in zip(links, sizes, strict=True)]
    for (alpha, bandwidth), got in zip(links, answer.call(_fit, cases), strict=True):
        _compare_link(got, alpha, bandwidth, 1e-3)


@FIT.check("noise of 3% moves neither by more than 10%", points=3)
def check_noise(answer: Answer) -> None:
    """Five decades of sizes, five measurements of each, the noise in proportion to the time."""
    sizes = [2**k for k in range(8, 27)] * 5
    cases = [(sizes, _measurements(30e-6, 1e9, sizes, 0.03)) for _ in range(3)]
    for got in answer.call(_fit, cases):
        _compare_link(got, 30e-6, 1e9, 0.1)


# --- 2. bus bandwidth -------------------------------------------------------------------------------------------------

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
            f"{name} of {nbytes:,} bytes on {ranks} ranks in {seconds:.3f} s: expected {right / 1e6:,.3f} MB/s, got "
            f"{got / 1e6:,.3f}. How many times does each byte of the vector have to pass a link?",
        )


# --- 3. spines --------------------------------------------------------------------------------------------------------

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
    for case, got in zip(cases, answer.call(_spines, cases), strict=True):
        hosts, host_rate, uplink_rate, ratio = case
        right = max(1, math.ceil(hosts * host_rate / (uplink_rate * ratio) - 1e-9))
        words = f"{hosts} hosts of {host_rate} Gb/s a leaf, uplinks of {uplink_rate} Gb/s, at most {ratio:g} : 1"
        require(
            isinstance(got, int), f"{words}: a number of switches is a whole number; got {got!r}."
        )
        over = hosts * host_rate / (max(got, 1) * uplink_rate)
        require(
            got >= right,
            f"{words}: with {got} spines the leaf is oversubscribed {over:.2f} : 1. What goes up when one spine fewer is bought?",
        )
        require(
            got <= right,
            f"{words}: {got} spines keep the promise, and so do {right}. Which ones could you save?",
        )
