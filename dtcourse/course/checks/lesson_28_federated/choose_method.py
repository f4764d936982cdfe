"""FedAvg or SCAFFOLD, and how many local steps, for clients and links that are drawn anew. Run, in closed form."""

from __future__ import annotations

import math
import random

import numpy as np
import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise
from dtcourse.course.judging.simulated import Simulated, require_near_best_of
from dtcourse.course.judging.trials import Choice

CHOOSE = Exercise(
    "choose_method",
    lesson="28",
    title="Choose the method and the local steps",
    takes=("choose_method",),
    target="on 6 federations, drawn anew each time, at most 1.1 times the best choice's time; at most 11 of 24 choices "
    "tried",
)

METHODS, STEPS = ("FedAvg", "SCAFFOLD"), tuple(2**n for n in range(12))
CHOICES: list[Choice] = [(method, K) for method in METHODS for K in STEPS]
MOST, NEAR = 11, 1.1
CLIENTS, LR, LAST = 8, 0.005, 4000  # rounds after which a run is given up
PART = 1e-3  # of the loss above its minimum, which is to be left
# Of clients and links: of what their minima and curvatures are drawn, how far minima lie apart, the smallest
# curvature; seconds of a step, and of a vector's way to or from a client.
Job = tuple[int, float, float, float, float]


def losses_of(seed: int, apart: float, slow: float) -> tuple[Tensor, Tensor]:
    """a, m (clients, 3): client k's loss is the sum of a (x - m)^2 / 2 over three numbers.

    The first one is steep and the last one flat at all clients, with minima in common. In the middle they differ.
    """
    draw = torch.Generator().manual_seed(seed)
    middle = torch.logspace(math.log10(3), math.log10(30), CLIENTS, dtype=torch.double)
    a = torch.tensor([[100.0, 0.0, slow]], dtype=torch.double).repeat(CLIENTS, 1)
    m = torch.tensor([[0.3, 1.0, 3.0 / slow**0.5]], dtype=torch.double).repeat(CLIENTS, 1)
    a[:, 1] = middle[torch.randperm(CLIENTS, generator=draw)]
    # the steeper a client is there, the further out its minimum: that is what the mean of models misses
    m[:, 1] += apart * (a[:, 1].log() - a[:, 1].log().mean())
    m[:, 1] += 0.1 * apart * torch.randn(CLIENTS, generator=draw, dtype=torch.double)
    return a, m


def rounds_to(method: str, K: int, a: Tensor, m: Tensor) -> float:
    """Rounds until PART of the loss above its minimum is left; infinite where that does not come.

    K steps of lr on such a loss have a closed form: y - x = -(1 - (1 - lr a)^K) / a times the gradient where they
    begin, corrected or not.
    """
    return _rounds_to(method, K, a.numpy(), m.numpy())


def _rounds_to(method: str, K: int, a: np.ndarray, m: np.ndarray) -> float:
    """The same of arrays: of 24 numbers at a time numpy makes thousands of rounds several times faster than torch."""
    x, own, mean_a = np.zeros(3), np.zeros_like(a), a.mean(0)
    best, pull = (a * m).mean(0) / mean_a, (1 - (1 - LR * a) ** K) / a
    wanted = PART * (mean_a * best**2).sum()
    for number in range(1, LAST + 1):
        c = own.mean(0)
        change = -pull * (a * (x - m) + (c - own if method == "SCAFFOLD" else 0.0))
        own = own - c - change / (K * LR)
        before, x = x, x + change.mean(0)
        if (mean_a * (x - best) ** 2).sum() <= wanted:
            return number
        if method == "FedAvg" and abs(x - before).max() < 1e-9:  # it rests elsewhere
            break
    return math.inf


def run(
    choice: Choice, seed: int, apart: float, slow: float, compute: float, way: float
) -> tuple[float]:
    """Seconds to the loss. A round takes a client's steps, and two vectors' ways or, with SCAFFOLD, four."""
    method, K = choice
    vectors = 4 if method == "SCAFFOLD" else 2
    return (rounds_to(method, K, *losses_of(seed, apart, slow)) * (K * compute + vectors * way),)


def case(job: Job) -> Simulated:
    """A federation, as an answer gets it."""
    return Simulated(run, CHOICES, job, (list(METHODS), list(STEPS)), MOST, beforehand=True)


def drawn(alike: bool) -> list[Job]:
    """Three of them: flat and slow links, flat and quicker ones, steeper; in any order."""
    found = []
    for slow, link in ((0.4, 1000.0), (0.4, 60.0), (3.0, 300.0)):
        apart = random.uniform(0.01, 0.02) if alike else random.uniform(0.5, 0.8)
        compute = 10 ** random.uniform(-3, -1)
        # where nothing drifts steps are many and messages few: only slower links show SCAFFOLD's price
        way = compute * link * random.uniform(0.8, 1.25) * (4 if alike else 1)
        found.append(
            (
                random.randrange(2**31),
                apart,
                slow * random.uniform(0.8, 1.25) * (2 if alike else 1),
                compute,
                way,
            )
        )
    random.shuffle(found)
    return found


PRACTICE = case((0, 0.6, 0.4, 1e-2, 1.0))


def _require(answer: Answer, jobs: list[Job], hint: str) -> None:
    for job in jobs:
        _, _, _, compute, way = job
        federation = case(job)
        require_near_best_of(
            federation.best(),
            answer,
            federation,
            f"{compute * 1e3:.3g} ms per step, {way:.3g} s for a vector",
            f"Possible are {METHODS}, with steps of {STEPS}.",
            hint,
            NEAR,
        )


@CHOOSE.check("where clients are nearly alike", points=5)
def check_alike(answer: Answer) -> None:
    """Nothing to correct, and SCAFFOLD's vectors have their price."""
    _require(
        answer,
        drawn(alike=True),
        "What does SCAFFOLD save there, and what does it cost? How do rounds fall with the steps, and what does a "
        "round of so many steps take?",
    )


@CHOOSE.check("where their minima lie apart", points=5)
def check_apart(answer: Answer) -> None:
    """FedAvg comes near enough with few steps alone."""
    _require(
        answer,
        drawn(alike=False),
        "With how many steps does FedAvg still arrive, and how many rounds does it take then? And the other method: "
        "was it measured with half and with twice the steps of its best?",
    )
