"""To share by speed or to leave a slow rank out, and how patient a balance should be. Run on the emulated clock."""

from __future__ import annotations

import random

import torch

from dtcourse.course.judging import Answer, Exercise, trials
from dtcourse.emulation import EmulatedNetwork
from dtcourse.heterogeneous import proportional_shares, step_seconds

CHOOSE = Exercise(
    "choose_patience",
    lesson="27",
    title="Share or leave out, and how patient?",
    takes=("choose_patience",),
    launches=True,
    target="on 4 clusters, drawn anew each time, at most 1.01 times the best choice's time; at most 7 of 12 choices "
    "tried",
    forbidden=("dtcourse.heterogeneous",),
)

RANKS, STEPS, BATCH, SAMPLE = 3, 96, 60, 1e-3  # SAMPLE: seconds of a sample on a rank that is not slow
GAIN = 1.05
WAYS, PATIENCES = ("share", "leave out"), (1, 2, 4, 8, 16, 32)
CHOICES: list[trials.Choice] = [(way, patience) for way in WAYS for patience in PATIENCES]
MOST = 7
# Of a run: the seed of who is slow when; steps of a short spell; how many times slower a slow rank is; seconds of a
# step beside its samples, on a rank that is not slow; seconds of a move.
Job = tuple[int, int, float, float, float]


def slowness(seed: int, spell: int, factor: float) -> list[list[float]]:
    """By step, by rank: 1, or how many times slower it is. Alike on all ranks.

    One rank is slow from near the middle on; the two others are so for `spell` steps now and then, never both at once.
    """
    draw = random.Random(seed)
    lasting = draw.randrange(RANKS)
    others = [rank for rank in range(RANKS) if rank != lasting]
    slow = [[1.0] * RANKS for _ in range(STEPS)]
    for now in slow[draw.randint(36, 44) :]:
        now[lasting] = factor
    at = draw.randint(2, 4)
    while at + spell <= STEPS:
        rank = draw.choice(others)
        for now in slow[at : at + spell]:
            now[rank] = factor
        at += spell + draw.randint(spell + 3, spell + 6)
    return slow


def division(way: str, speeds: list[float]) -> list[int]:
    """The shares that this way takes for the best."""
    if way == "leave out":
        speeds = [1.0 if speed > 0.66 * max(speeds) else 1e-9 for speed in speeds]
    return proportional_shares(BATCH, speeds)


def run(
    choice: trials.Choice, seed: int, spell: int, factor: float, fixed: float, move: float
) -> tuple[float]:
    """On each rank: seconds of the run. Arguments as in a Job."""
    import torch.distributed as dist

    from dtcourse import emulation

    way, patience = choice
    rank, shares, seen = dist.get_rank(), [BATCH // RANKS] * RANKS, 0
    start = trials.begin_together()
    for now in slowness(seed, spell, factor):
        if shares[rank]:
            emulation.sleep(now[rank] * (fixed + shares[rank] * SAMPLE))
        # Here all wait for the last one, as for gradients.
        told = [torch.empty(1, dtype=torch.double) for _ in range(RANKS)]
        dist.all_gather(told, torch.tensor([1 / now[rank]], dtype=torch.double))
        speeds = [float(one) for one in told]
        better = division(way, speeds)
        gains = step_seconds(shares, speeds) > GAIN * step_seconds(better, speeds)
        seen = seen + 1 if gains else 0
        if seen == patience:
            shares, seen = better, 0
            emulation.sleep(move)
    return (emulation.now() - start,)


def case(job: Job) -> trials.Case:
    """A cluster, as an answer gets it."""
    network = {"network": EmulatedNetwork(latency=1e-5)}
    return trials.Case(run, RANKS, CHOICES, job, (list(WAYS), list(PATIENCES)), MOST, network)


def drawn(costly: bool) -> list[Job]:
    """Two of them, in any order: moves cost next to nothing, and moves cost many steps.

    costly: whether a step costs a slow rank much beside its samples, which no share relieves it of
    """
    found = []
    for dear in (False, True):
        # As long as the spells that a patience of 2, 4, 8 and 16 sits out, if moves are dear.
        spell = random.choice((1, 3, 7, 12))
        fixed = random.uniform(18e-3, 24e-3) if costly else random.uniform(0, 0.3e-3)
        move = random.uniform(0.35, 0.5) if dear else random.uniform(1e-3, 4e-3)
        found.append((random.randrange(2**31), spell, random.uniform(2.6, 3.4), fixed, move))
    random.shuffle(found)
    return found


PRACTICE = case((0, 3, 3.0, 0.2e-3, 0.4))


def _require(answer: Answer, jobs: list[Job], hint: str) -> None:
    for job in jobs:
        _, spell, factor, fixed, move = job
        where = (
            f"a rank {factor:.1f} times slower from the middle on, others for {spell} steps now and then; "
            f"{1e3 * fixed:.1f} ms per step beside samples, {1e3 * move:.0f} ms per move"
        )
        why = f"Possible are {WAYS}, with a patience of {PATIENCES}."
        trials.require_near_best_of(CHOICES, answer, case(job), where, why, hint)


@CHOOSE.check("where a slow rank's step is its samples", points=5)
def check_samples(answer: Answer) -> None:
    """A slow rank with fewer samples ends with the others."""
    _require(
        answer,
        drawn(costly=False),
        "What can a slow rank still do? And how long are the spells that are over before a move has paid?",
    )


@CHOOSE.check("where it is more than its samples", points=5)
def check_costly(answer: Answer) -> None:
    """What it costs a rank to take part at all, a slow one pays several times."""
    _require(
        answer,
        drawn(costly=True),
        "What does a slow rank cost the others even with a single sample? And how long are the spells that are over "
        "before a move has paid?",
    )
