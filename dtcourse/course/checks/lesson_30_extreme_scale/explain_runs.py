"""Published runs of one model with several lengths: what grows with the length, told by a run that was not shown."""

from __future__ import annotations

import random
from functools import cache

import numpy as np

from dtcourse.course.judging import Answer, Exercise, call_each, number, require
from dtcourse.simulator.hardware import published

EXPLAIN = Exercise(
    "explain_runs",
    lesson="30",
    title="Explain published runs",
    takes=("explain_runs",),
    target="for 6 models; which runs are shown, and which one is asked for, is drawn anew: seconds within 8 % of what "
    "was published, the length of equal parts within 20 % of what all published runs of the model tell",
    forbidden=("dtcourse.planner", "dtcourse.simulator"),
)

NEAR, NEAR_LENGTH = 0.08, 0.20  # of 1b the slope of its last two runs alone is 6.5 % off
LEAST = 3  # runs that are shown of short sequences; where there are more, one is left out
# By model: whether its blocks are computed twice (all runs alike), and the lengths. Left out are 30b, whose longest run
# takes 1.3 times what the others tell, 760m's two shortest, which are as slow as one another, and 350m, whose shortest
# and longest runs tell different slopes.
MODELS: dict[str, tuple[bool, tuple[int, ...]]] = {
    "13b": (True, (1024, 4096, 8192, 16384, 32768)),
    "7b": (True, (1024, 4096, 8192, 16384, 32768, 65536)),
    "3b": (False, (512, 1024, 2048, 4096, 8192, 16384)),
    "1b": (False, (512, 1024, 2048, 4096, 8192, 16384, 32768)),
    "760m": (False, (2048, 4096, 8192, 16384, 32768)),
    "125m": (False, (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)),
}
LARGE, SMALL = ("13b", "7b", "3b"), ("1b", "760m", "125m")
Run = tuple[int, int, float]  # tokens of a sequence, tokens of a step, seconds of a step


@cache
def runs_of(model: str) -> list[Run]:
    """The published ones, the shortest sequences first; of one length the one with most tokens."""
    twice, lengths = MODELS[model]
    found: dict[int, Run] = {}
    for row in published("mpt_a100")["rows"]:
        alike = (row["model"], row["gpu"], row["gpus"]) == (model, "a100_80gb", 8)
        if not alike or row["seq"] not in lengths or row["act_ckpt"] != twice:
            continue
        one = (row["seq"], row["gbs"] * row["seq"], row["iter_s"])
        if row["seq"] not in found or one[1] > found[row["seq"]][1]:
            found[row["seq"]] = one
    assert len(found) == len(lengths), model
    return [found[length] for length in lengths]


def equal_length(model: str) -> float:
    """Where half of a token's time grows with the length, by all published runs, errors relative."""
    lengths, tokens, seconds = (
        np.array(one, dtype=float) for one in zip(*runs_of(model), strict=True)
    )
    each = seconds / tokens
    rows = np.stack([1 / each, lengths / each], axis=1)
    alone, per_length = np.linalg.lstsq(rows, np.ones_like(each), rcond=None)[0]
    return float(alone / per_length)


def drawn(model: str) -> tuple[list[Run], Run]:
    """(what is shown, what is asked): one four times as long as the longest shown one. Of many, one is left out."""
    runs = {run[0]: run for run in runs_of(model)}
    ends = [
        length
        for length in runs
        if 4 * length in runs and (length >= 4096 or sum(one <= length for one in runs) >= LEAST)
    ]
    longest = random.choice(ends)
    shown = [run for length, run in runs.items() if length <= longest]
    if len(shown) > LEAST:
        # The longest stays, so that what is asked is four times as long.
        del shown[random.randrange(len(shown) - 1)]
    random.shuffle(shown)
    return shown, runs[4 * longest]


def _require(answer: Answer, models: tuple[str, ...], hint: str) -> None:
    models *= 2  # and each is asked for twice: a model alone does not tell which run
    cases = [drawn(model) for model in models]
    given = [(shown, asked[0], asked[1]) for shown, asked in cases]
    said = call_each(answer, given, shuffled=True)
    for model, (_, (length, _, published_seconds)), got in zip(models, cases, said, strict=True):
        told = [number(one) for one in got] if isinstance(got, (list, tuple)) else []
        require(
            len(told) == 2 and all(isinstance(one, (int, float)) for one in told),
            f"An answer is two numbers, such as (12.5, 8000.0); got {got!r}.",
        )
        seconds, equal = map(float, told)
        ratio = seconds / published_seconds
        where = f"MPT {model} with sequences of {length:,} tokens"
        require(
            abs(ratio - 1) <= NEAR,
            f"{where}: you say {seconds:.4g} s a step, which is {ratio:.2f} of what was published. "
            f"{hint}",
        )
        right = equal_length(model)
        require(
            abs(equal / right - 1) <= NEAR_LENGTH,
            f"{where}: by all published runs both parts of a token's time are equal at a "
            f"{'longer' if equal < right else 'shorter'} length than your {equal:,.0f} tokens, by more than a fifth. "
            "Which of the two parts does each number of your fit stand for, and do all shown runs tell of both?",
        )


@EXPLAIN.check("models whose attention is a small part", points=4)
def check_large(answer: Answer) -> None:
    """Of wide models most work is products, up to long sequences."""
    _require(
        answer,
        LARGE,
        "What of a token's work is the same for any length, and what does it do with each other token of its sequence?",
    )


@EXPLAIN.check("models whose attention is a large part", points=4)
def check_small(answer: Answer) -> None:
    """Of narrow models it is most of a long sequence's time."""
    _require(
        answer,
        SMALL,
        "How does the time per token change from one of the shown lengths to the next, and how does that go on?",
    )
