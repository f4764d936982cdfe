"""How often replicas are compared: runs with faults, on the emulated clock."""

from __future__ import annotations

import random

from dtcourse.course.judging import Answer, Exercise, require_near_best, trials
from dtcourse.emulation import EmulatedNetwork

CHOOSE = Exercise(
    "choose_looks",
    lesson="24",
    title="How often to look",
    takes=("choose_looks",),
    target="in 3 jobs, run on the emulated clock, at most 1.07 times the time of the best of 8 choices; at most 4 of "
    "them tried",
    forbidden=("dtcourse.debugging", "dtcourse.emulation"),
    launches=True,
)

RANKS, STEPS, STEP, MOST, NEAR = 2, 144, 1.0, 4, 1.07
CHOICES: list[trials.Choice] = [(every,) for every in (2, 3, 4, 6, 8, 12, 16, 24)]
LAST = 1500  # the step after which nothing happens any more, so that each run ends


def job(
    choice: tuple[int],
    steps: int,
    step_seconds: float,
    look_seconds: float,
    faults: dict[int, int] | None,
) -> tuple[float]:
    """On each rank: the seconds until so many steps are done that no fault is in.

    faults: {step performed: rank}; none on a rank that is not told of them, and has none
    """
    import torch
    import torch.distributed as dist

    from dtcourse import emulation

    start, rank = trials.begin_together(), dist.get_rank()
    performed = done = good = 0
    spoiled = torch.zeros(1, dtype=torch.int64)
    while good < steps:
        emulation.sleep(step_seconds)
        performed, done = performed + 1, done + 1
        if faults and faults.get(performed) == rank:
            spoiled.fill_(1)
        if done % choice[0] == 0 or done == steps:
            emulation.sleep(look_seconds)
            dist.all_reduce(spoiled, op=dist.ReduceOp.MAX)
            # All go back to the copy of the last look that was good, or make one.
            good = good if spoiled.item() else done
            done = good
            spoiled.zero_()
    return (emulation.now() - start,)


def _case(mean: int, look_seconds: float) -> trials.Case:
    """Faults come after about `mean` steps, drawn anew."""
    faults, at = {}, 0
    while at < LAST:
        at += random.randint(mean // 2, mean + mean // 2)
        faults[at] = random.randrange(1, RANKS)  # rank 0 has the answer
    return trials.Case(
        job,
        RANKS,
        CHOICES,
        (STEPS, STEP, look_seconds),
        (STEPS, STEP, look_seconds),
        MOST,
        {"network": EmulatedNetwork(latency=1e-6, bandwidth=1e9)},
        hidden=(faults,),
    )


PRACTICE = _case(24, 1.0)


def _require(answer: Answer, mean: int, look_seconds: float, hint: str) -> None:
    tried = _case(mean, look_seconds).tried(answer, job, CHOICES)
    where = f"A look takes {look_seconds:g} s and a step {STEP:g} s"
    (taken,) = trials.require_possible(
        where, tried, (6,), f"A choice is one of {', '.join(str(one[0]) for one in CHOICES)}."
    )
    least = min(seconds for (seconds,) in tried.probed)
    require_near_best(where, tried.choice, taken, least, "s", hint, near=NEAR)


@CHOOSE.check("a look is dear", points=3)
def check_dear(answer: Answer) -> None:
    """It takes six steps."""
    _require(
        answer, 40, 6.0,
        "How much of the run are looks, and how much is done twice? Which of the two does your choice leave out?",
    )  # fmt: skip


@CHOOSE.check("faults are many", points=3)
def check_many(answer: Answer) -> None:
    """One in about twelve steps."""
    _require(
        answer, 12, 0.5,
        "How long is it from one fault to the next here, and how many of your stretches between two looks have none in "
        "them? What you have measured says so.",
    )  # fmt: skip


@CHOOSE.check("faults are few", points=3)
def check_few(answer: Answer) -> None:
    """One in about sixty steps."""
    _require(
        answer, 60, 1.5,
        "What does a stretch that has to be done again cost, how often does that happen, and what do the looks cost?",
    )  # fmt: skip
