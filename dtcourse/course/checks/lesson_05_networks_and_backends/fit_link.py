"""Latency and bandwidth from measured times."""

from __future__ import annotations

import random
from typing import Any

from dtcourse.course.judging import Answer, Exercise, require

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


@FIT.check("noise of 3% moves neither by more than 10%", points=3, needs=("check_exact",))
def check_noise(answer: Answer) -> None:
    """Five decades of sizes, five measurements of each, the noise in proportion to the time."""
    sizes = [2**k for k in range(8, 27)] * 5
    cases = [(sizes, _measurements(30e-6, 1e9, sizes, 0.03)) for _ in range(3)]
    for got in answer.call(_fit, cases):
        _compare_link(got, 30e-6, 1e9, 0.1)
