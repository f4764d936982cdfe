"""A schedule that counts samples."""

from __future__ import annotations

import math
import random
from typing import Any

from dtcourse.course.judging import Answer, Exercise, call_each, number, require

RATES = Exercise(
    "learning_rate",
    lesson="08",
    title="A schedule that counts samples",
    takes=("learning_rate",),
    target="300 learning rates to 1e-12 of their peak, for batches 1 to 40 times the small one",
    forbidden=(
        "torch.optim.lr_scheduler",
        "dtcourse.large_batch",
    ),
)
Case = tuple[int, int, float, int, int, int]  # samples, batch, base_lr, base_batch, warmup, total


def _refused_rates(learning_rate: Any, cases: list[Case]) -> list[str]:
    said = []
    for case in cases:
        try:
            said.append(f"returned {learning_rate(*case)!r}")
        except Exception as error:
            said.append(type(error).__name__)
    return said


def _rate(
    samples: int, batch: int, base_lr: float, base_batch: int, warmup: int, total: int
) -> float:
    peak = base_lr * batch / base_batch
    if samples < warmup:
        return base_lr + (peak - base_lr) * samples / warmup
    done = min(1.0, (samples - warmup) / (total - warmup))
    return peak * (1 + math.cos(math.pi * done)) / 2


def _settings() -> tuple[int, float, int, int, int]:
    warmup = random.randrange(1_000, 50_000)
    base = random.choice([16, 32, 256])
    k = random.choice([1, 2, 8, 40])
    return base * k, 10 ** random.uniform(-3, 0), base, warmup, warmup * random.randrange(2, 30)


def _ask_rates(answer: Answer, cases: list[Case], hint: str) -> None:
    for case, got in zip(cases, map(number, call_each(answer, cases)), strict=True):
        samples, batch, base_lr, base_batch, warmup, total = case
        right = _rate(*case)
        require(
            isinstance(got, (int, float))
            and math.isclose(
                got, right, rel_tol=1e-12, abs_tol=1e-12 * base_lr * batch / base_batch
            ),
            f"After {samples:,} of {total:,} samples (warm-up {warmup:,}) with a batch of {batch} where "
            f"{base_lr:.3g} suits {base_batch}: the learning rate is {right:.6g}, and yours is {got!r:.20}. {hint}",
        )


@RATES.check("the peak: linear in the batch", points=1)
def check_peak(answer: Answer) -> None:
    """At the end of the warm-up, and with none."""
    cases = []
    for _ in range(20):
        batch, lr, base, warmup, total = _settings()
        cases += [(warmup, batch, lr, base, warmup, total), (0, batch, lr, base, 0, total)]
    _ask_rates(
        answer,
        cases,
        "By what factor does the linear rule raise a learning rate when the batch grows k times?",
    )


@RATES.check("the warm-up: from the small batch's learning rate, counted in samples", points=2)
def check_warmup(answer: Answer) -> None:
    """Where it starts, and at points on the way."""
    cases, starts = [], []
    for _ in range(40):
        batch, lr, base, warmup, total = _settings()
        starts.append((0, batch, lr, base, warmup, total))
        cases.append((random.randrange(1, warmup), batch, lr, base, warmup, total))
    _ask_rates(
        answer,
        starts,
        "Which learning rate is safe at the very start: none at all, or the one that suits the small batch?",
    )
    _ask_rates(
        answer,
        cases,
        "Halfway through the warm-up's samples, whatever the batch, the learning rate is halfway up. What do you "
        "divide by?",
    )


@RATES.check("the cosine: from the peak to 0, and 0 beyond the end", points=2)
def check_cosine(answer: Answer) -> None:
    """After the warm-up, at the end and after it."""
    cases, after = [], []
    for _ in range(40):
        batch, lr, base, warmup, total = _settings()
        cases.append((random.randrange(warmup, total), batch, lr, base, warmup, total))
        after += [(total + extra, batch, lr, base, warmup, total) for extra in (0, batch, total)]
    _ask_rates(
        answer,
        cases,
        "The cosine begins where the warm-up ends: which share of *its* samples is done?",
    )
    _ask_rates(answer, after, "A cosine that goes on beyond its end comes up again.")


@RATES.check("what makes no sense is refused", points=1, needs=("check_peak",))
def check_refusals(answer: Answer) -> None:
    """ValueError: no samples in a batch, a warm-up that is not over before the end."""
    bad = [(0, 0, 0.1, 32, 10, 100), (0, 32, 0.1, 0, 10, 100), (0, 32, 0.1, 32, 100, 100)]
    for case, said in zip(bad, answer.call(_refused_rates, bad), strict=True):
        require(
            said == "ValueError",
            f"learning_rate{case} should raise a ValueError (a batch below 1, or a warm-up that is not shorter than "
            f"the run); yours {said}.",
        )
