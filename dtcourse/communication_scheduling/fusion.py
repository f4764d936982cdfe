"""Fusion: how many gradients a message should carry.

Each all-reduce costs a time of its own, however short it is, and one for its bytes. Small buckets leave early and pay
the first often; one large bucket pays it once, and the network waits until backward ends:

    small   ready |1|2|3|4|      network  [1 ][2 ][3 ][4 ]
    large   ready |1|2|3|4|      network          [1 2 3 4  ]
    best    ready |1|2|3|4|      network  [1 ][2 3 ][4 ]

The model: a bucket leaves when its last gradient is ready and the one before it has arrived, and takes what the cost
model of its all-reduce says (simulator/collective_cost.py: latency, gap, bandwidth). With gradients that flow evenly, r
bytes a second, n in all, and A + s beta seconds for a bucket of s bytes, the best size is

    min(n, sqrt(n A r), A / (1/r - beta))

The square root is where the network is the bottleneck: a larger first bucket, which it waits for, against fewer
messages. The last one counts where backward is: buckets just large enough for the network to keep up, so that the last
one is short.

Sizes need not be equal. The division that ends first is found exactly, since what ends earlier is never worse for what
follows (`best_division`). Source: Shi, Chu and Li 2019, "MG-WFBP" (1811.11141), who merge gradients by such a model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch

from dtcourse.parameters.buckets import Bucket
from dtcourse.simulator import collective_cost as cost
from dtcourse.simulator.collective_cost import Link

Seconds = Callable[[float], float]  # of an all-reduce of so many bytes
Division = list[int]  # how many gradients each bucket holds, in the order of readiness


@dataclass(frozen=True)
class Gradient:
    """nbytes of a parameter's gradient; ready: when backward has made it, in seconds after its begin."""

    nbytes: int
    ready: float


def all_reduce_seconds(ranks: int, link: Link, algorithm: str = "ring") -> Seconds:
    """The cost model of one all-reduce, by its bytes."""
    return partial(_seconds, algorithm, ranks, link)


def _seconds(algorithm: str, ranks: int, link: Link, nbytes: float) -> float:
    return cost.seconds(algorithm, "all_reduce", nbytes, ranks, link)


def divide(gradients: Sequence[Gradient], bucket_bytes: float) -> Division:
    """Buckets as DistributedDataParallel fills them: each is closed when it has reached `bucket_bytes`."""
    _check(gradients)
    if not bucket_bytes > 0:
        raise ValueError(f"a bucket holds more than 0 bytes; got bucket_bytes={bucket_bytes!r}")
    division, members, held = [], 0, 0
    for gradient in gradients:
        members, held = members + 1, held + gradient.nbytes
        if held >= bucket_bytes:
            division.append(members)
            members = held = 0
    return division + [members] * (members > 0)


def arrival(gradients: Sequence[Gradient], division: Division, seconds: Seconds) -> float:
    """When the last bucket has arrived, in seconds after backward's begin."""
    _check(gradients)
    if sum(division) != len(gradients) or min(division) < 1:
        raise ValueError(
            f"a division has 1 gradient or more in each bucket, {len(gradients)} in all; got {division}"
        )
    first, free = 0, 0.0
    for members in division:
        bucket = gradients[first : first + members]
        first += members
        free = max(free, max(g.ready for g in bucket)) + seconds(sum(g.nbytes for g in bucket))
    return free


def best_size(gradients: Sequence[Gradient], seconds: Seconds) -> tuple[int, float]:
    """The bucket size in bytes with which all arrive first, and when; of equals the largest.

    Tries every size that makes another division: the sums of gradients that follow each other.
    """
    _check(gradients)
    ends = [0, *accumulate(g.nbytes for g in gradients)]
    sizes = {b - a for i, a in enumerate(ends) for b in ends[i + 1 :]} - {0}
    times: dict[tuple[int, ...], float] = {}
    found: list[tuple[float, int]] = []
    for size in sizes:
        division = divide(gradients, size)
        key = tuple(division)
        if key not in times:
            times[key] = arrival(gradients, division, seconds)
        found.append((times[key], -size))
    when, size = min(found)
    return -size, when


def best_division(gradients: Sequence[Gradient], seconds: Seconds) -> tuple[Division, float]:
    """The division into buckets of any sizes with which all arrive first, and when.

    earliest[j]: when the first j gradients can have arrived. The last of their buckets holds gradients i to j - 1:
    it starts at max(earliest[i], when they are ready).
    """
    _check(gradients)
    ends = [0, *accumulate(g.nbytes for g in gradients)]
    earliest, begins = [0.0], [0]
    for j in range(1, len(gradients) + 1):
        ready, options = 0.0, []
        for i in range(j - 1, -1, -1):
            ready = max(ready, gradients[i].ready)
            options.append((max(earliest[i], ready) + seconds(ends[j] - ends[i]), i))
        when, begin = min(options)
        earliest.append(when)
        begins.append(begin)
    division, j = [], len(gradients)
    while j:
        division.append(j - begins[j])
        j = begins[j]
    return division[::-1], earliest[-1]


def best_even_size(
    total_bytes: float, backward_seconds: float, message_seconds: float, byte_seconds: float
) -> float:
    """The formula's best size in bytes, for gradients that flow evenly during backward.

    message_seconds, byte_seconds: A and beta of the whole all-reduce (for a ring 2 (p - 1) (alpha + gap), and
    2 (p - 1)/p of the link's beta)
    Raises ValueError where one of them is no time, or there is nothing to send.
    """
    given = (total_bytes, backward_seconds, message_seconds, byte_seconds)
    if not (
        total_bytes > 0 and backward_seconds > 0 and message_seconds >= 0 and byte_seconds >= 0
    ):
        raise ValueError(
            "bytes and backward's seconds are above 0, a message's and a byte's 0 or more; got "
            f"total_bytes={given[0]}, backward_seconds={given[1]}, message_seconds={given[2]}, byte_seconds={given[3]}"
        )
    rate = total_bytes / backward_seconds
    spare = 1 / rate - byte_seconds
    keeps_up = message_seconds / spare if spare > 0 else math.inf
    return min(total_bytes, math.sqrt(total_bytes * message_seconds * rate), keeps_up)


class AssignDivision:
    """What a Reducer takes as `assign`: buckets of so many gradients each, as they become ready."""

    def __init__(self, division: Division) -> None:
        self.division = list(division)

    def __call__(self, parameters: Sequence[torch.Tensor]) -> list[Bucket]:
        """Raises ValueError where there is another number of parameters, or a bucket would hold two dtypes."""
        if sum(self.division) != len(parameters):
            raise ValueError(
                f"the division {self.division} is for {sum(self.division)} gradients, and there are {len(parameters)}"
            )
        buckets, rest = [], list(parameters)
        for i, members in enumerate(self.division):
            mine, rest = rest[:members], rest[members:]
            if len({(p.dtype, p.device) for p in mine}) > 1:
                kinds = sorted({f"{p.dtype} on {p.device}" for p in mine})
                raise ValueError(f"bucket {i} of the division would hold {' and '.join(kinds)}")
            buckets.append(Bucket(i, mine, i == len(self.division) - 1))
        return buckets


def _check(gradients: Sequence[Gradient]) -> None:
    if not gradients:
        raise ValueError("there are 0 gradients: nothing to divide into buckets")
    if wrong := [g for g in gradients if g.nbytes < 0 or not g.ready >= 0]:
        raise ValueError(f"bytes and times are 0 or more; got {wrong[0]}")
