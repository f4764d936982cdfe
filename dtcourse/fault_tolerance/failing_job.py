"""A job that trains, saves, fails and starts again, on a virtual clock: what becomes of its time.

    lives = draw_lives(job.mtbf, 200, seeds=range(1000))        # (1000, 200): seconds from one failure to the next
    wasted(job, young(job.save, job.mtbf), lives)               # (1000,): of each seed, the part that was no work
    run = simulate(job, 817, lives[0])                          # the same, event by event, with a timeline

Nobody sleeps, and a seed's failures come at the same times whatever the interval is: intervals are compared by pairs.
A life begins with a failure and ends with the next one; the job is never done, so that its end tips no scale. After a
failure all is as good as new. That is exact where failures come at random. Under Weibull it means that the next
failure's chance counts from the last one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from dtcourse.events import Event, Timeline
from dtcourse.fault_tolerance.interval import FailingJob


def draw_lives(
    mtbf: float, failures: int, seeds: Iterable[int], shape: float = 1.0
) -> torch.Tensor:
    """(seeds, failures), double: seconds from each failure to the next, by the Weibull distribution with this mean.

    shape: 1 is the exponential. A seed's chances are the same for all shapes

    Raises ValueError for a shape or a mean not above 0, or no failure.
    """
    if not 0 < shape < math.inf or not 0 < mtbf < math.inf or failures < 1:
        raise ValueError(
            f"mtbf and shape are above 0, and there is a failure at least; got {mtbf}, {shape} and {failures}"
        )
    drawn = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        drawn.append(torch.rand(failures, dtype=torch.double, generator=generator))
    # rand may be 0 and is never 1: the logarithm of what is left is finite.
    return mtbf / math.gamma(1 + 1 / shape) * (-torch.log1p(-torch.stack(drawn))).pow(1 / shape)


def wasted(job: FailingJob, interval: float, lives: torch.Tensor) -> torch.Tensor:
    """The part of each seed's time that was no saved work: lives (seeds, failures) -> (seeds,)."""
    after_first = lives - (job.restart + interval + job.complete)
    saves = torch.where(after_first < 0, 0.0, (after_first / job.period(interval)).floor() + 1)
    return 1 - interval * saves.sum(1) / lives.sum(1)


@dataclass(frozen=True)
class FailingRun:
    """What became of a job's time.

    useful:     work that a complete checkpoint has kept
    lost:       work that has to be done again
    saving:     training stood still for a save, or for the save before it
    restarting: from failures until training went on
    saves:      checkpoints that became complete
    timeline:   of rank 0, in lanes "main" and "disk"
    """

    useful: float
    lost: float
    saving: float
    restarting: float
    saves: int
    timeline: Timeline

    @property
    def waste(self) -> float:
        """The part of the time that was no saved work."""
        return 1 - self.useful / (self.useful + self.lost + self.saving + self.restarting)


def simulate(job: FailingJob, interval: float, lives: Iterable[float]) -> FailingRun:
    """Event by event, from one failure to the next. ValueError for an interval that is not above 0."""
    if not interval > 0:
        raise ValueError(f"an interval is a number of seconds above 0; got {interval}")
    clock = _Clock()
    saves = 0
    for life in lives:
        clock.failure = clock.now + float(life)
        saves += _one_life(job, interval, clock)
        clock.now = clock.failure
    trained, useful = clock.spent["train"], saves * interval
    saving = clock.spent["save"] + clock.spent["wait for the save before"]
    return FailingRun(
        useful, trained - useful, saving, clock.spent["restart"], saves, Timeline(clock.events)
    )


class _Clock:
    """The time, the next failure, and what has been done."""

    def __init__(self) -> None:
        self.now = self.failure = 0.0
        self.events: list[Event] = []
        self.spent = dict.fromkeys(("train", "save", "wait for the save before", "restart"), 0.0)

    def spend(self, name: str, kind: str, until: float) -> bool:
        """Does one thing until then, or until the failure: whether it was done."""
        end = min(until, self.failure)
        if end > self.now:
            self.events.append(Event(name, kind, 0, self.now, end))
            self.spent[name] += end - self.now
            self.now = end
        return until <= self.failure


def _one_life(job: FailingJob, interval: float, clock: _Clock) -> int:
    """From a failure to the next one: how many checkpoints became complete."""
    if not clock.spend("restart", "idle", clock.now + job.restart):
        return 0
    saves, complete = 0, clock.now
    while clock.spend("train", "compute", clock.now + interval) and clock.spend(
        "wait for the save before", "wait", complete
    ):
        begin, complete = clock.now, clock.now + job.complete
        written = min(complete, clock.failure)
        clock.events.append(
            Event("write", "memory", 0, begin, written, lane="disk", detail={"complete": complete <= clock.failure})
        )  # fmt: skip
        saves += complete <= clock.failure
        if not clock.spend("save", "memory", begin + job.save):
            break
    return saves
