"""Amdahl's law from measurements."""

from __future__ import annotations

import math
import random
from typing import Any

from dtcourse.course.judging import Answer, Exercise, require
from dtcourse.plural import plural

AMDAHL = Exercise(
    "amdahl",
    lesson="01b",
    title="Amdahl's law from measurements",
    takes=("serial_fraction", "predict_seconds", "most_ranks"),
    target="the fraction to 1e-6 from exact times, and to 0.03 from times with 2% noise (0.012 in the root mean "
    "square); the number of ranks exactly",
)


def _seconds(
    total: float, fraction: float, ranks: list[int], noise: float = 0.0
) -> dict[int, float]:
    return {
        w: total * (fraction + (1 - fraction) / w) * (1 + random.uniform(-noise, noise))
        for w in ranks
    }


def _fractions(
    serial_fraction: Any, _p: Any, _m: Any, cases: list[dict[int, float]]
) -> list[float]:
    return [float(serial_fraction(dict(case))) for case in cases]


def _predictions(_s: Any, predict_seconds: Any, _m: Any, cases: list[Any]) -> list[float]:
    return [float(predict_seconds(dict(times), ranks)) for times, ranks in cases]


def _most(_s: Any, _p: Any, most_ranks: Any, cases: list[Any]) -> list[int]:
    return [most_ranks(dict(times), efficiency) for times, efficiency in cases]


@AMDAHL.check("the serial fraction of exact times", points=2)
def check_fraction(answer: Answer) -> None:
    """Recovered to 1e-6, also where no time of one rank is given."""
    for ranks, what in (([1, 2, 4, 8], "1, 2, 4 and 8"), ([2, 3, 8], "2, 3 and 8")):
        fractions = [random.uniform(0.02, 0.6) for _ in range(3)]
        cases = [_seconds(random.uniform(1, 100), s, ranks) for s in fractions]
        for s, got in zip(fractions, answer.call(_fractions, cases), strict=True):
            require(
                abs(got - s) < 1e-6,
                f"From the exact times of {what} ranks the serial fraction is {s:.4f}, and yours is {got:.4f}. The "
                "time on W ranks is a + b / W: which two numbers are a and b, and which share of T(1) is a?",
            )


@AMDAHL.check("the serial fraction of noisy times", points=2)
def check_noise(answer: Answer) -> None:
    """All measurements count: the answer is a fit."""
    errors = []
    for _ in range(40):
        s = random.uniform(0.1, 0.4)
        times = _seconds(10.0, s, [1, 2, 3, 4, 6, 8, 12, 16], noise=0.02)
        errors.append((s, times))
    came = answer.call(_fractions, [times for _, times in errors])
    off = sum((got - s) ** 2 for (s, _), got in zip(errors, came, strict=True)) / len(errors)
    require(
        math.sqrt(off) < 0.012
        and max(abs(g - s) for (s, _), g in zip(errors, came, strict=True)) < 0.03,
        f"With 2% noise on eight times, your fraction is off by {math.sqrt(off):.3f} (root mean square over 40 tries); "
        "0.012 is possible. Does every measurement count in your fit, or only two of them?",
    )


@AMDAHL.check("times are predicted for ranks that nobody measured", points=2)
def check_prediction(answer: Answer) -> None:
    """Seconds, by Amdahl's law, to a millionth."""
    cases, expected = [], []
    for _ in range(4):
        total, s, ranks = (
            random.uniform(1, 100),
            random.uniform(0.02, 0.6),
            random.choice([16, 64, 1000]),
        )
        cases.append((_seconds(total, s, [2, 4, 8]), ranks))
        expected.append(total * (s + (1 - s) / ranks))
    for (_, ranks), got, right in zip(
        cases, answer.call(_predictions, cases), expected, strict=True
    ):
        require(
            abs(got - right) < 1e-6 * right,
            f"On {plural(ranks, 'rank')} the work takes {right:.4f} s, and you predict {got:.4f} s. The serial part "
            "takes as long as ever, however many ranks there are; only the rest is divided.",
        )


@AMDAHL.check("how many ranks are worth their money", points=2)
def check_most(answer: Answer) -> None:
    """The largest whole number with at least that efficiency."""
    cases, expected = [], []
    for efficiency in (0.9, 0.75, 0.5, 0.5):
        s = random.uniform(0.003, 0.15)
        bound = 1 + (1 / efficiency - 1) / s  # E = 1 / (s W + 1 - s)
        if abs(bound - round(bound)) < 1e-3:
            s *= 1.01
        cases.append((_seconds(random.uniform(1, 100), s, [1, 2, 4, 8]), efficiency))
        expected.append(math.floor(1 + (1 / efficiency - 1) / s))
    for (times, efficiency), got, right in zip(
        cases, answer.call(_most, cases), expected, strict=True
    ):
        extra = ""
        if got == right + 1:
            extra = (
                " The number after the last good one is not good any more: which way do you round?"
            )
        require(
            got == right,
            f"An efficiency of at least {efficiency:.0%} (speed-up divided by ranks) is kept up to "
            f"{plural(right, 'rank')}, and you say {got!r}, from times of {sorted(times)} ranks.{extra}",
        )
