"""What the monkey will do in one run, drawn from a seed: the same plan each time.

What comes of it is not the same each time: when a signal arrives a rank may be anywhere in its step. That is the point,
and why there are many seeds.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from dtcourse.fault_tolerance.chaos.faults import FROM_FILES

# By how often they are drawn: in a step, while a checkpoint is written, or after a failure, before the ranks go on.
MOMENTS = {"step": 2, "save": 1, "recovery": 1}
TOGETHER = 0.3  # of the strikes are two faults at once


@dataclass(frozen=True)
class Strike:
    """One act of the monkey.

    at:     when a checkpoint of this step or a later one is there
    moment: and then: "step", at once; "save", when the next one is being written; "recovery": it kills a rank, and
            acts when the ranks have been started again
    kinds:  what it does, each to another rank
    after:  seconds that it waits before it acts, once all that is so
    """

    at: int
    moment: str
    kinds: tuple[str, ...]
    after: float


def plan(seed: int, last: int, strikes: int = 3, kinds: Sequence[str] = FROM_FILES) -> list[Strike]:
    """So many strikes, in the order of their steps, in a run of `last` steps.

    kinds: of faults.KINDS, those that the run has an answer to

    Every kind comes as often as any other over many seeds. Raises ValueError for too few steps.
    """
    if strikes < 1 or last < 5 * strikes:
        raise ValueError(
            f"{strikes} strikes in {last} steps: 1 strike or more, and five steps for each"
        )
    draw = random.Random(f"chaos {seed}")
    found, share = [], last / (strikes + 1)  # the last share is for coming to the end
    for number in range(strikes):
        at = int(share * (number + draw.random() * 0.7) + 1)
        moment = draw.choices(list(MOMENTS), list(MOMENTS.values()))[0]
        drawn = draw.sample(list(kinds), 2 if draw.random() < TOGETHER else 1)
        longest = {"step": 0.2, "save": 0.03, "recovery": 0.4}[moment]
        found.append(Strike(at, moment, tuple(drawn), draw.uniform(0, longest)))
    return found
