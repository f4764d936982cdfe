"""In which order slices of gradients leave: a queue by priority in front of a network that sends one after the other.

Backward makes the last layer's gradient first, and the next forward needs the first layer's first. So whenever the
network is free, the slice goes that is needed soonest of those that are ready:

    layer 2   ready at 1    ██░░    two slices, one each unit of time
    layer 1   ready at 2      ██    it overtakes the second slice of layer 2

    sent      2.0  1.0  1.1  2.1    in place of  2.0  2.1  1.0  1.1

What has been handed to the network is not taken back. The credit says how many bytes that may be: a small one lets an
urgent slice overtake soon, an infinite one is first in, first out. (A small one also leaves a real network without work
between slices, where it is a message away; here the collectives of a group follow each other at once.)

All ranks must call their collectives in one order, although each has its own times. Here the order is made once, from
the slowest rank's times in a step that was recorded, and kept: nothing is asked of the others in the middle of a
backward. (ByteScheduler lets one rank decide, slice by slice, and tell the others.)

Source: Jayarajan et al. 2019, "Priority-based parameter propagation" (P3, 1905.03960); Peng et al., "A generic
communication scheduler for distributed DNN training acceleration" (ByteScheduler, SOSP 2019), whose credit this is.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

# A slice that is almost ready when the network becomes free is waited for: times are sums, and have last digits.
PATIENCE = 1e-3  # of the time that the shortest slice takes


@dataclass(frozen=True)
class Slice:
    """A part of a layer's gradient that travels alone.

    layer:    the layer's number;  start, stop: which elements of its flat gradient
    nbytes:   bytes;  ready: when backward has made it, in seconds
    urgency:  0 for what the next forward needs first
    seconds:  how long the network needs for it
    """

    layer: int
    start: int
    stop: int
    nbytes: int
    ready: float
    urgency: int
    seconds: float


def send_order(slices: Sequence[Slice], credit_bytes: float) -> list[int]:
    """The order, as places in `slices`, in which a queue by urgency hands them to the network.

    credit_bytes: what may be handed over and not have arrived; one slice always may
    """
    patience = PATIENCE * min((s.seconds for s in slices), default=0.0)
    coming = deque(sorted(range(len(slices)), key=lambda i: (slices[i].ready, i)))
    queue: list[tuple[int, int]] = []  # by urgency; of equals, the one that was cut first
    under_way: deque[tuple[float, int]] = deque()  # when each arrives, and its bytes
    order: list[int] = []
    now = free = 0.0
    while coming or queue:
        while coming and slices[coming[0]].ready <= now + patience:
            heapq.heappush(queue, (slices[coming[0]].urgency, coming.popleft()))
        while under_way and under_way[0][0] <= now:
            under_way.popleft()
        if queue:
            most_urgent = slices[queue[0][1]]
            handed_over = sum(nbytes for _, nbytes in under_way)
            if not under_way or handed_over + most_urgent.nbytes <= credit_bytes:
                order.append(heapq.heappop(queue)[1])
                free = max(free, now, most_urgent.ready) + most_urgent.seconds
                under_way.append((free, most_urgent.nbytes))
                continue
        # Nothing can be handed over before something arrives, or becomes ready.
        moments = [slices[coming[0]].ready] if coming else []
        moments += [under_way[0][0]] if under_way else []
        now = min(moments)
    return order


def arrivals(slices: Sequence[Slice], order: Sequence[int]) -> dict[int, float]:
    """When each layer's last slice has arrived, in seconds, where slices are sent in that order,
    each when it is ready.
    """
    free, arrived = 0.0, {}
    for i in order:
        free = max(free, slices[i].ready) + slices[i].seconds
        arrived[slices[i].layer] = free
    return arrived


def step_seconds(arrived: Sequence[float], forward: Sequence[float], backward_end: float) -> float:
    """From the begin of a backward to the end of the next forward, where each layer waits for its own gradient alone.

    arrived: when each layer's gradient is there, first layer first;  forward: each layer's own time in it
    """
    now = backward_end
    for there, seconds in zip(arrived, forward, strict=True):
        now = max(now, there) + seconds
    return now


def expected_gain(num_layers: int, forward: float, backward: float, communication: float) -> float:
    """Seconds that priority saves in a step of equal layers: (L - 1) min(f, c - b), and nothing where c is below b.

    forward, backward, communication: f, b, c, each one layer's own time

    First in, first out, the first layer's gradient is the last to arrive, at b + L c, and all of forward comes after
    it: b + L c + L f. By priority the network carries the rest while forward runs. Either it stays the bottleneck, and
    b + L c + f is left; or it keeps ahead of forward, and what is left is L b + c + L f.
    Raises ValueError for no layers or a time below 0.
    """
    if num_layers < 1 or not min(forward, backward, communication) >= 0:
        raise ValueError(
            "a model has 1 layer or more, and times are 0 or more seconds; got "
            f"num_layers={num_layers}, {forward=}, {backward=}, {communication=}"
        )
    return (num_layers - 1) * max(0.0, min(forward, communication - backward))


def check_sizes(slice_bytes: float, credit_bytes: float) -> None:
    """Raises ValueError for a slice that holds nothing, or a credit that is no number of bytes."""
    if not (isinstance(slice_bytes, int) and slice_bytes >= 1):
        raise ValueError(f"slice_bytes is a whole number of bytes, 1 or more; got {slice_bytes!r}")
    number = isinstance(credit_bytes, int | float) and not math.isnan(credit_bytes)
    if not (number and credit_bytes > 0):
        raise ValueError(
            "credit_bytes is how much may be handed to the network at once, above 0 bytes (math.inf: first in, first "
            f"out); got {credit_bytes!r}"
        )
