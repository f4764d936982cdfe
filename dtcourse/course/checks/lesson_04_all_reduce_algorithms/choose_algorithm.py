"""Choose the algorithm by its cost."""

from __future__ import annotations

import math
import random
from typing import Any

from dtcourse.course.judging import Answer, Exercise, require
from dtcourse.plural import plural

CHOOSE = Exercise(
    "choose_algorithm",
    lesson="04",
    title="Choose the algorithm by its cost",
    takes=("seconds", "choose", "crossover"),
    target="times to 1e-9, 200 choices right, crossovers to 1e-6",
    forbidden=(
        "dtcourse.collectives.algorithms",
        "dtcourse.collectives.terms",
        "dtcourse.simulator.collective_cost",
        "dtcourse.simulator",
    ),
)


def _usable(ranks: int) -> list[str]:
    return ["ring", "tree"] + (["doubling"] if ranks & (ranks - 1) == 0 else [])


def _terms(name: str, ranks: int) -> tuple[float, float]:
    rounds = (ranks - 1).bit_length()
    return {
        "ring": (2 * (ranks - 1), 2 * (ranks - 1) / ranks),
        "tree": (2 * rounds, 2 * rounds),
        "doubling": (rounds, rounds),
    }[name]


def _time(name: str, nbytes: float, ranks: int, alpha: float, beta: float) -> float:
    messages, vectors = _terms(name, ranks)
    return messages * alpha + vectors * nbytes * beta


def _from(ranks: int, alpha: float, beta: float) -> float:
    """The size from which on the ring is the fastest."""
    at = [0.0]
    for name in _usable(ranks):
        messages = _terms("ring", ranks)[0] - _terms(name, ranks)[0]
        if messages > 0:
            vectors = _terms(name, ranks)[1] - _terms("ring", ranks)[1]
            at.append(messages * alpha / (vectors * beta) if vectors else math.inf)
    return max(at)


def _network() -> tuple[float, float]:
    return 10 ** random.uniform(-6, -2), 10 ** random.uniform(-11, -7)


def _all_seconds(seconds: Any, _c: Any, _x: Any, cases: list[Any]) -> list[float]:
    return [float(seconds(*case)) for case in cases]


def _refused(seconds: Any, _c: Any, _x: Any, cases: list[Any]) -> list[str]:
    said = []
    for case in cases:
        try:
            said.append(f"returned {seconds(*case)!r}")
        except Exception as error:
            said.append(type(error).__name__)
    return said


def _choices(_s: Any, choose: Any, _x: Any, cases: list[Any]) -> list[str]:
    return [choose(*case) for case in cases]


def _crossovers(_s: Any, _c: Any, crossover: Any, cases: list[Any]) -> list[float]:
    return [float(crossover(*case)) for case in cases]


@CHOOSE.check("the predicted times", points=2)
def check_times(answer: Answer) -> None:
    """To 1e-9 of their size, and ValueErrors."""
    cases = [
        (name, random.randrange(1, 10**9), ranks, *_network())
        for ranks in (1, 2, 3, 6, 8, 100, 1024)
        for name in _usable(ranks)
    ]
    for case, got in zip(cases, answer.call(_all_seconds, cases), strict=True):
        name, nbytes, ranks = case[:3]
        right = _time(*case)
        require(
            math.isclose(got, right, rel_tol=1e-9, abs_tol=1e-15),
            f"{name}, {nbytes:,} bytes on {plural(ranks, 'rank')}, alpha {case[3]:.3g} s, beta {case[4]:.3g} s a "
            f"byte: {right:.6g} s by the table, and yours is {got:.6g} s. "
            + ("How many rounds has a tree of that many ranks?" if ranks & (ranks - 1) else "")
            + ("With one rank there is nothing to send." if ranks == 1 else ""),
        )
    bad = [("doubling", 8, 6, 1e-6, 1e-9), ("carrier pigeon", 8, 4, 1e-6, 1e-9)]
    for case, said in zip(bad, answer.call(_refused, bad), strict=True):
        require(
            said == "ValueError",
            f"seconds({case[0]!r}, ...) on {case[2]} ranks should raise a ValueError: yours {said}.",
        )


@CHOOSE.check("the fastest that can be used, in 200 calls", points=2)
def check_choice(answer: Answer) -> None:
    """Random sizes, ranks and networks."""
    cases = [
        (int(10 ** random.uniform(0, 10)), random.choice([2, 3, 4, 6, 8, 24, 64, 512]), *_network())
        for _ in range(194)
    ]
    cases += [(8, ranks, 1e-4, 1e-9) for ranks in (3, 6, 24)]  # where doubling would be fastest
    cases += [(10**9, ranks, 1e-6, 1e-9) for ranks in (4, 6, 64)]
    for case, got in zip(cases, answer.call(_choices, cases), strict=True):
        nbytes, ranks = case[:2]
        times = {name: _time(name, *case) for name in _usable(ranks)}
        require(
            got in times,
            f"On {plural(ranks, 'rank')} choose says {got!r}; what can be used there is {', '.join(times)}.",
        )
        require(
            times[got] <= min(times.values()) * (1 + 1e-9),
            f"{nbytes:,} bytes on {plural(ranks, 'rank')}, alpha {case[2]:.2g}, beta {case[3]:.2g}: choose says "
            f"{got} ({times[got]:.3g} s); the fastest takes {min(times.values()):.3g} s. Did you compare the times "
            "of this very call?",
        )


@CHOOSE.check("the size from which on the ring is the fastest", points=3)
def check_crossover(answer: Answer) -> None:
    """To 1e-6 of its size; 0 where the ring is never slower, infinity where it is never the fastest."""
    cases = [(ranks, *_network()) for ranks in (3, 4, 5, 6, 8, 64, 100, 1024, 2)]
    for case, got in zip(cases, answer.call(_crossovers, cases), strict=True):
        ranks, alpha, beta = case
        right = _from(*case)
        if ranks & (ranks - 1) == 0:
            hint = "Which of the others is the ring's last rival here?"
        else:
            hint = "Which of the others can be used on that many ranks?"
        if right in (0.0, math.inf):
            hint = "Compare the ring with each of the others, term by term: which is ahead at any size at all?"
        require(
            math.isclose(got, right, rel_tol=1e-6, abs_tol=1e-9),
            f"On {plural(ranks, 'rank')} with alpha {alpha:.3g} s and beta {beta:.3g} s a byte the ring is the "
            f"fastest from {right:,.4g} bytes on, and you say {got:,.4g}. {hint}",
        )
