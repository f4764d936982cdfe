"""Which ranks are slower than the others, step after step, found from the times that their own work takes.

In lock-step every rank's step takes as long as the slowest's, since all wait for it. So only a rank's own work tells:
from the end of one wait to the beginning of the next.

    detector = StragglerDetector(window=20)
    for x, y in batches:
        with detector.own_work():
            loss(model(x), y).backward()
        average_gradients(model)             # here the others wait: not measured
    found = detector.check()                 # on all ranks at the same time, now and then
    found.ranks                              # (2,), the same on every rank

One slow step makes no straggler, and a straggler must not hide itself by spoiling the figures that it is held against.
So a rank is its median over the last steps, and is compared with the median of the ranks, in units of the median
absolute deviation (MAD; Iglewicz and Hoaglin 1993 take 3.5 of them for an outlier, times 1.4826, which makes the MAD a
standard deviation where times are normal). The unit is the larger of two: how much the ranks differ, and how much one
rank's steps do; and a difference too small to matter is none.

On a GPU the work is measured by events in its stream, since the host's clock would say how long queueing took, and a
hot GPU is slow in what it was queued. (unverified: no GPU was at hand.) They are read when `check` is called, so that
no step waits for its own work.

Bytes: a check is an all-gather of 24 bytes a rank.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median, median_low

import torch
import torch.distributed as dist

from dtcourse import device, events
from dtcourse.events import Timeline
from dtcourse.parameters.replicas import Group
from dtcourse.streams import Moment
from dtcourse.torch_private import device_of_messages

NORMAL = 1.4826  # the standard deviation over the MAD, for normal numbers


@dataclass(frozen=True)
class Stragglers:
    """What a check has found.

    ranks:   the stragglers, the slowest first
    seconds: each rank's median over its window
    usual:   the median of those; of an even number the lower one of the two in the middle
    unit:    the deviation that is usual, as a standard deviation, in seconds
    """

    ranks: tuple[int, ...]
    seconds: tuple[float, ...]
    usual: float
    unit: float

    @property
    def slowdown(self) -> tuple[float, ...]:
        """How many times as long as usual each rank takes."""
        return tuple(s / self.usual if self.usual else 1.0 for s in self.seconds)


def find_stragglers(
    seconds: Sequence[Sequence[float]], threshold: float = 3.5, least: float = 0.1
) -> Stragglers:
    """Stragglers from each rank's own times; the rules of StragglerDetector.

    With half of the ranks slow, the slow half is found: what is usual is what the faster half does.
    """
    _check(threshold, least)
    empty = [rank for rank, times in enumerate(seconds) if not times]
    if empty or not seconds:
        raise ValueError(f"no time of rank {empty[0]} is known" if empty else "no rank, no time")
    return _judge(
        [median(times) for times in seconds], [_mad(times) for times in seconds], threshold, least
    )


def stragglers_in(
    timeline: Timeline, name: str, threshold: float = 3.5, least: float = 0.1
) -> Stragglers:
    """Stragglers from a run that has ended: by its events of this name (run.timeline, record=True).

    ValueError where a rank has no such event.
    """
    found = [[e.seconds for e in timeline.of(rank=r, name=name)] for r in timeline.ranks]
    missing = [r for r, times in zip(timeline.ranks, found, strict=True) if not times]
    if missing or not found:
        raise ValueError(f"no event {name!r} of rank {missing[0]}" if missing else "no events")
    return find_stragglers(found, threshold, least)


class StragglerDetector:
    """Keeps the times of this rank's own work, and finds with the others who is slow.

    window:    steps that count, the last ones
    threshold: usual deviations above what is usual from which on a rank is a straggler
    least:     and how much slower it must be at least, as a fraction: 0.1 is a tenth
    where:     the device that works; default: this rank's

    seconds: of the last steps, as far as they have been read

    Raises ValueError for a window below 3, which has no outliers, a threshold or a fraction that is not above 0.
    """

    def __init__(
        self,
        window: int = 20,
        threshold: float = 3.5,
        least: float = 0.1,
        group: Group = None,
        where: torch.device | None = None,
    ) -> None:
        if window < 3:
            raise ValueError(f"a median needs a window of 3 steps or more; got {window}")
        _check(threshold, least)
        self.threshold, self.least, self.group = threshold, least, group
        self.where = device.current() if where is None else where
        self.seconds: deque[float] = deque(maxlen=window)
        self._origin: Moment | None = None  # ties the GPU's clock to the events'
        self._unread: deque[tuple[str, Moment, Moment]] = deque()

    @contextmanager
    def own_work(self, name: str = "own work") -> Iterator[None]:
        """Measures what this rank does by itself, and records it as an event of this name."""
        if self._origin is None:
            device.synchronize(self.where)
            self._origin = Moment(self.where)
        began = Moment(self.where)
        yield
        self._unread.append((name, began, Moment(self.where)))
        # What is as old as a window has been done long ago: reading it waits for nothing.
        self._read(0 if began.event is None else self.seconds.maxlen or 0)

    def check(self) -> Stragglers:
        """Who is slow: the same answer on all ranks, which all call it. ValueError where one has measured nothing."""
        self._read()
        known = list(self.seconds)
        mine = [median(known), _mad(known)] if known else [0.0, 0.0]
        size, where = dist.get_world_size(self.group), device_of_messages(self.group)
        everyone = [torch.empty(3, dtype=torch.float64, device=where) for _ in range(size)]
        told = torch.tensor([*mine, len(known)], dtype=torch.float64, device=where)
        dist.all_gather(everyone, told, group=self.group)
        medians, deviations, numbers = torch.stack(everyone).t().tolist()
        if 0 in numbers:
            raise ValueError(
                f"rank {numbers.index(0)} has measured no step: use own_work() on each rank"
            )
        return _judge(medians, deviations, self.threshold, self.least)

    def _read(self, but_last: int = 0) -> None:
        """Takes the times of what has been measured, all but the last ones."""
        while len(self._unread) > but_last:
            name, began, ended = self._unread.popleft()
            self.seconds.append(ended.seconds_since(began))
            assert self._origin is not None, "there was work"
            events.add(name, "step", began.on_host(self._origin), ended.on_host(self._origin))


def _judge(
    medians: Sequence[float], deviations: Sequence[float], threshold: float, least: float
) -> Stragglers:
    usual = median_low(medians)
    between = median_low([abs(m - usual) for m in medians])
    unit = NORMAL * max(between, median_low(deviations))
    slow = [
        rank
        for rank, m in enumerate(medians)
        if m - usual > threshold * unit and m - usual > least * usual
    ]
    slow.sort(key=lambda rank: -medians[rank])
    return Stragglers(tuple(slow), tuple(medians), usual, unit)


def _mad(times: Sequence[float]) -> float:
    """The median absolute deviation."""
    middle = median(times)
    return median(abs(t - middle) for t in times)


def _check(threshold: float, least: float) -> None:
    if not threshold > 0 or not least > 0:
        raise ValueError(f"threshold and least are above 0; got {threshold} and {least}")
