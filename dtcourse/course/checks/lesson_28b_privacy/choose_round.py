"""How many clients a round of secure aggregation asks, and its threshold, for drop-outs, helpers of the server and
seconds that are drawn anew. Run, in closed form.
"""

from __future__ import annotations

import math
import random

import torch

from dtcourse.course.judging import Answer, Exercise, require, require_near_best
from dtcourse.course.judging.simulated import Simulated
from dtcourse.course.judging.trials import Choice, require_possible

CHOOSE = Exercise(
    "choose_round",
    lesson="28b",
    title="How many to ask, and with which threshold?",
    takes=("choose_round",),
    target="on 6 federations, drawn anew each time, nobody uncovered, and at most 1.1 times the best choice's time; at "
    "most 14 of 44 choices measured",
)

ASKED = (40, 50, 60, 75, 90, 110, 135, 165, 200, 245, 300)
SHARES = (0.55, 0.65, 0.75, 0.85)
CHOICES: list[Choice] = [(asked, share) for share in SHARES for asked in ASKED]
MOST, NEAR = 14, 1.1
LOG_FACTORIALS = torch.lgamma(torch.arange(1, max(ASKED) + 2, dtype=torch.double))
# Of a federation: clients wanted in the sum; the part of all that helps the server; how likely a client sends its
# numbers, and then stays to the end; seconds of a round, and more for each pair of those asked.
Job = tuple[int, float, float, float, float, float]


def threshold_of(asked: int, share: float) -> int:
    """The share, rounded up."""
    return math.ceil(asked * share - 1e-9)


def chance(asked: int, threshold: int, wanted: int, sends: float, stays: float) -> float:
    """That `wanted` clients or more send their numbers, and `threshold` or more of these stay to the end."""
    if max(wanted, threshold) > asked:
        return 0.0
    sent = torch.arange(max(wanted, threshold), asked + 1)
    stayed = torch.arange(threshold, asked + 1)
    gone, left = asked - sent, sent[:, None] - stayed
    came = (
        LOG_FACTORIALS[asked] - LOG_FACTORIALS[sent] - LOG_FACTORIALS[gone]
        + sent * math.log(sends) + gone * math.log1p(-sends)
    ).exp()  # fmt: skip
    logs = (
        LOG_FACTORIALS[sent][:, None] - LOG_FACTORIALS[stayed] - LOG_FACTORIALS[left.clamp(min=0)]
        + stayed * math.log(stays) + left * math.log1p(-stays)
    )  # fmt: skip
    enough = torch.where(left >= 0, logs, -math.inf).exp().sum(1)
    return float((came * enough).sum())


def run(
    choice: Choice, wanted: int, part: float, sends: float, stays: float, link: float, pair: float
) -> tuple[float, float]:
    """Seconds until a round counts, on average; and how many clients can be uncovered.

    A round that does not count is begun anew, and takes as long. With h helpers of n clients the server makes two
    groups of t, which have h in common, where 2 t <= n + h.
    """
    asked, share = choice
    threshold, helpers = threshold_of(asked, share), int(part * asked)
    counts = chance(asked, threshold, wanted, sends, stays)
    seconds = (link + pair * asked**2) / counts if counts > 1e-9 else math.inf
    return seconds, float(asked - helpers if 2 * threshold <= asked + helpers else 0)


def case(job: Job) -> Simulated:
    """A federation, as an answer gets it."""
    return Simulated(run, CHOICES, job, (list(ASKED), list(SHARES)), MOST)


# How many of all help the server, and which part of those asked stays to the end; and the share that is right then.
KINDS = {
    "few help": ((0.0, 0.08), (0.62, 0.70), 0.55),
    "some help": ((0.16, 0.24), (0.71, 0.77), 0.65),
    "many help": ((0.36, 0.44), (0.80, 0.84), 0.75),
}


def drawn(*kinds: str) -> list[Job]:
    """One federation of each of these three kinds, in any order."""
    found = []
    for kind, (low, high) in zip(kinds, ((45, 60), (70, 95), (110, 130)), strict=True):
        wanted, stays = random.randint(low, high), random.uniform(0.94, 0.98)
        helpers, left, _ = KINDS[kind]
        part, whole = random.uniform(*helpers), random.uniform(*left)
        sends, pair = whole / stays, 10 ** random.uniform(-5, -3)
        link = pair * (wanted / sends) ** 2 * random.uniform(0.2, 1.0)
        found.append((wanted, part, sends, stays, link, pair))
    random.shuffle(found)
    return found


PRACTICE = case((80, 0.2, 0.85, 0.95, 0.5, 1e-4))


def best_of(job: Job) -> tuple[Choice, float]:
    """The quickest choice that uncovers nobody, and its seconds."""
    every = {choice: case(job).measured(choice) for choice in CHOICES}
    found = {choice: seconds for choice, (seconds, uncovered) in every.items() if not uncovered}
    best = min(found, key=found.__getitem__)
    return best, found[best]


def _require(answer: Answer, jobs: list[Job], hint: str) -> None:
    for job in jobs:
        _, least = best_of(job)
        tried, where = (
            case(job).tried(answer),
            f"A federation that wants {job[0]} clients in the sum",
        )
        why = f"Possible are {ASKED}, with shares of {SHARES}."
        seconds, uncovered = require_possible(where, tried, CHOICES[len(CHOICES) // 2], why)
        require(
            not uncovered,
            f"{where}: with {tried.choice!r} the server and its helpers can uncover {uncovered:.0f} clients. It sends "
            "different lists to two groups, and its helpers are in both. How large is a threshold that two such groups "
            "cannot both reach?",
        )
        require_near_best(where, tried.choice, seconds, least, "s", hint, NEAR)


@CHOOSE.check("where many drop out", points=5)
def check_dropouts(answer: Answer) -> None:
    """A threshold above those that stay stops every round."""
    _require(
        answer,
        drawn(*random.sample(["few help", "few help", "some help"], 3)),
        "Which share of those asked is still there in the end, and what does a threshold near it do? Were more clients "
        "measured than that, and fewer?",
    )


@CHOOSE.check("where many help the server", points=5)
def check_helped(answer: Answer) -> None:
    """A threshold just above half uncovers everybody."""
    _require(
        answer,
        drawn(*random.sample(["many help", "many help", "some help"], 3)),
        "Which thresholds uncover nobody, and which of those do enough clients reach? How does a round's time grow with"
        " those asked, and how often must it be begun anew?",
    )
