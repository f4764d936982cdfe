"""What each rank can do, measured: seconds per sample, robust to outliers, and the same figures on all ranks.

A rank is its median over its last steps, so one slow step (another program, a page fault) changes nothing. How much its
steps differ among themselves, by their median absolute deviation, says how sure that median is: whoever acts on it
should not act on noise (balance.py). All ranks gather the figures of all, so what they conclude is the same.

Time is that of dtcourse.events: on emulated devices the emulated clock, so figures are the same on every machine.

What its memory holds a rank knows alone; that, too, is told to all, once, before the first step.

Bytes: 24 from each rank for each look.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from dtcourse import device, events
from dtcourse.heterogeneous.shares import samples_that_fit
from dtcourse.parameters.agreement import raise_on_all_ranks
from dtcourse.parameters.replicas import Group
from dtcourse.torch_private import device_of_messages

NORMAL = 1.4826  # the standard deviation over the median absolute deviation, for normal numbers
OF_MEDIAN = 1.2533  # the standard error of a median over that of a mean, for normal numbers
FEWEST = 3  # measurements, of which one may be an outlier
# How many times too small the deviation of few numbers is on average, by how many they are (Croux and Rousseeuw 1992).
OF_FEW = {3: 1.495, 4: 1.363, 5: 1.206, 6: 1.2, 7: 1.14, 8: 1.129, 9: 1.107}


class Capability(NamedTuple):
    """One rank's speed.

    seconds: of one unit of work (a sample), the median; nan where nothing has been measured
    error:   the standard error of that median, in seconds; inf below three measurements, which say nothing of it
    number:  measurements
    """

    seconds: float
    error: float
    number: int

    @property
    def speed(self) -> float:
        """Units of work per second."""
        return 1.0 / self.seconds


class Meter:
    """The last measurements of this rank.

    window: how many count. After a change of speed the median follows when half of them are new

    Raises ValueError for a window below 3, in which one outlier decides.
    """

    def __init__(self, window: int = 7) -> None:
        if window < FEWEST:
            raise ValueError(
                f"a median needs a window of {FEWEST} or more against an outlier; got {window}"
            )
        self.each: deque[float] = deque(maxlen=window)

    def add(self, seconds: float, work: float) -> None:
        """So much work took so long. Raises ValueError where either is not above 0, or not finite."""
        if not 0 < seconds < math.inf or not 0 < work < math.inf:
            raise ValueError(
                f"a measurement is of some work that takes some time; got {work!r} in {seconds!r} s"
            )
        self.each.append(seconds / work)

    def clear(self) -> None:
        """Forgets all: what is measured from here on is of another share."""
        self.each.clear()

    def capability(self) -> Capability:
        """What the measurements say of this rank."""
        if not self.each:
            return Capability(float("nan"), 0.0, 0)
        number, middle = len(self.each), median(self.each)
        if number < FEWEST:
            return Capability(middle, math.inf, number)
        few = OF_FEW.get(number, number / (number - 0.8))
        deviation = few * NORMAL * median(abs(one - middle) for one in self.each)
        return Capability(middle, OF_MEDIAN * deviation / number**0.5, number)


def of_all_ranks(mine: Capability, group: Group = None) -> list[Capability]:
    """Every rank's, on every rank, in the order of the group's ranks. A collective."""
    where = device_of_messages(group)
    told = torch.tensor(mine, dtype=torch.float64, device=where)
    everyone = [torch.empty_like(told) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, told, group=group)
    rows = torch.stack(everyone).tolist()
    return [Capability(seconds, error, int(number)) for seconds, error, number in rows]


def limits_of_all_ranks(
    memory_bytes: float, fixed_bytes: float, sample_bytes: float, group: Group = None
) -> list[int]:
    """How many samples each rank's memory holds, in the order of the group's ranks: Balance's `limits`. A collective.

    memory_bytes, fixed_bytes, sample_bytes: this rank's own, as samples_that_fit takes them

    Raises ValueError on every rank where one has no memory for a sample, or said what cannot be.
    """
    mine = raise_on_all_ranks(
        lambda: samples_that_fit(dist.get_rank(group), memory_bytes, fixed_bytes, sample_bytes),
        group,
    )
    everyone: list[int] = [0] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group=group)
    return everyone


def measured(
    work: Callable[[], Any], samples: float, repeats: int = 5, group: Group = None
) -> list[Capability]:
    """Does some work a few times on all ranks, and says what each can do: before any balance is known.

    work:    this rank's own, without messages: forward and backward of a batch, say. What it leaves stays (gradients,
             statistics, random numbers): take a copy of the model that is in no wrapper
    samples: that it is of
    repeats: after one to warm up; the median counts

    Raises ValueError on every rank where it fails on one, or takes no time: an emulated device without a limit.
    """
    meter = raise_on_all_ranks(lambda: _timed(work, samples, repeats), group)
    found = of_all_ranks(meter.capability(), group)
    for rank, one in enumerate(found):
        if not one.number:
            raise ValueError(
                f"the work took no time on rank {rank}: is its emulated device without limits, or was nothing computed?"
            )
    return found


def _timed(work: Callable[[], Any], samples: float, repeats: int) -> Meter:
    """All repeats; empty where one took no time."""
    meter, took = Meter(max(FEWEST, repeats)), []
    work()
    for _ in range(max(1, repeats)):
        device.synchronize()
        began = events.now()
        work()
        device.synchronize()
        took.append(events.now() - began)
    if min(took) > 0:
        for seconds in took:
            meter.add(seconds, samples)
    return meter
