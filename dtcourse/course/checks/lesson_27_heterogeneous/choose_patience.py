"""To share by speed or to leave a slow rank out, and how patient a balance should be. Run, on a clock of its own."""

from __future__ import annotations

import random
from functools import cache

from dtcourse.course.judging import Answer, Exercise
from dtcourse.course.judging.simulated import Simulated, require_near_best_of
from dtcourse.course.judging.trials import Choice
from dtcourse.heterogeneous import proportional_shares, step_seconds
from dtcourse.plural import plural

CHOOSE = Exercise(
    "choose_patience",
    lesson="27",
    title="Share or leave out, and how patient?",
    takes=("choose_patience",),
    target="on 6 clusters, drawn anew each time, at most 1.01 times the best choice's time; at most 7 of 12 choices "
    "tried",
    forbidden=("dtcourse.heterogeneous",),
)

RANKS, STEPS, BATCH = 3, 96, 60
SAMPLE = 1e-3  # seconds of a sample on a rank that is not slow
GAIN = 1.05
WAYS, PATIENCES = ("share", "leave out"), (1, 2, 4, 8, 16, 32)
CHOICES: list[Choice] = [(way, patience) for way in WAYS for patience in PATIENCES]
MOST, NEAR = 7, 1.01
# Of a run: the seed of who is slow when; steps of a short spell; how many times slower a slow rank is; seconds of a
# step beside its samples, on a rank that is not slow; seconds of a move.
Job = tuple[int, int, float, float, float]


def slowness(seed: int, spell: int, factor: float) -> list[list[float]]:
    """By step, by rank: 1, or how many times slower it is.

    Two ranks are so for `spell` steps now and then, never both at once; after that the third one to the end.
    """
    draw = random.Random(seed)
    lasting, lasts_from = draw.randrange(RANKS), draw.randint(58, 61)
    others = [rank for rank in range(RANKS) if rank != lasting]
    slow = [[1.0] * RANKS for _ in range(STEPS)]
    for now in slow[lasts_from:]:
        now[lasting] = factor
    at = draw.randint(2, 4)
    while at + spell < lasts_from - 2:
        rank = draw.choice(others)
        for now in slow[at : at + spell]:
            now[rank] = factor
        at += spell + draw.randint(spell + 3, spell + 6)
    return slow


@cache
def division(way: str, speeds: tuple[float, ...]) -> list[int]:
    """The shares that this way takes for the best."""
    if way == "leave out":
        speeds = tuple(1.0 if speed > 0.66 * max(speeds) else 1e-9 for speed in speeds)
    return proportional_shares(BATCH, speeds)


def run(
    choice: Choice, seed: int, spell: int, factor: float, fixed: float, move: float
) -> tuple[float]:
    """Seconds of the run. Arguments as in a Job."""
    way, patience = choice
    shares, seen, clock = [BATCH // RANKS] * RANKS, 0, 0.0
    for now in slowness(seed, spell, factor):
        # All wait for the last one, as for gradients.
        clock += max(slow * (fixed + n * SAMPLE) for slow, n in zip(now, shares, strict=True) if n)
        speeds = tuple(1 / slow for slow in now)
        better = division(way, speeds)
        gains = step_seconds(shares, speeds) > GAIN * step_seconds(better, speeds)
        seen = seen + 1 if gains else 0
        if seen == patience:
            shares, seen, clock = better, 0, clock + move
    return (clock,)


def case(job: Job) -> Simulated:
    """A cluster, as an answer gets it."""
    return Simulated(run, CHOICES, job, (list(WAYS), list(PATIENCES)), MOST, beforehand=True)


def drawn(costly: bool) -> list[Job]:
    """Three of them, in any order: moves cost next to nothing; they cost many steps, with short spells or long ones.

    costly: whether a step costs a slow rank much beside its samples, which no share relieves it of

    Where moves are dear the least patience that sits the spells out is best: 2 and 16; or 4 and 8, and 8 and 16 where
    a step is costly.
    """
    dear = (1.1, 1.4) if costly else (0.55, 0.75)
    found = []
    for spell, moves in (
        (random.choice((3, 7, 12)), (1e-3, 4e-3)),
        *((one, dear) for one in random.choice(((1, 12), (7, 12) if costly else (3, 7)))),
    ):
        fixed = random.uniform(18e-3, 24e-3) if costly else random.uniform(0, 0.3e-3)
        factor, move = random.uniform(2.6, 3.4), random.uniform(*moves)
        found.append((random.randrange(2**31), spell, factor, fixed, move))
    random.shuffle(found)
    return found


PRACTICE = case((0, 3, 3.0, 0.2e-3, 0.6))


def _require(answer: Answer, jobs: list[Job], hint: str) -> None:
    for job in jobs:
        _, spell, factor, fixed, move = job
        cluster = case(job)
        require_near_best_of(
            cluster.best(),
            answer,
            cluster,
            f"ranks {factor:.1f} times slower for {plural(spell, 'step')} now and then, and one to the end; "
            f"{1e3 * fixed:.1f} ms per step beside samples, {1e3 * move:.0f} ms per move",
            f"Possible are {WAYS}, with a patience of {PATIENCES}.",
            hint,
            NEAR,
        )


@CHOOSE.check("where a slow rank's step is its samples", points=5)
def check_samples(answer: Answer) -> None:
    """A slow rank with fewer samples ends with the others."""
    _require(
        answer,
        drawn(costly=False),
        "What can a slow rank still do? And how long are the spells that are over before a move has paid, "
        "and where a move costs nearly nothing?",
    )


@CHOOSE.check("where it is more than its samples", points=5)
def check_costly(answer: Answer) -> None:
    """What it costs a rank to take part at all, a slow one pays several times."""
    _require(
        answer,
        drawn(costly=True),
        "What does a slow rank cost the others even with a single sample? And how long are the spells that are over "
        "before a move has paid, and where a move costs nearly nothing?",
    )
