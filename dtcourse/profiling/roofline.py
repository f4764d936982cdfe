"""The roofline of this machine, measured, and each operator of a step on it.

    machine = measured_machine()                          # inside ranks it has their link as well
    placed = roofline(count(step, timed=True), machine)
    placed                                                # plots.roofline(placed) draws it

An operator of so many FLOPs that moves so many bytes cannot run faster than

    min(matrix rate, FLOPs / bytes x memory rate)         FLOPs per second

(Williams, Waterman and Patterson 2009, "Roofline"). Left of the ridge, where the two are equal, memory bounds it; right
of it the processor's multipliers do. The link is a third roof, over the FLOPs per byte that a whole step sends.

The rates are the best of several tries, since whatever else the machine does only slows them. The bytes of an operator
are an upper bound (each tensor once, from memory): one that finds its tensors in a cache lies above its roof.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from dtcourse import device, events
from dtcourse.collectives.terms import Link
from dtcourse.profiling.collective_lines import measured_link
from dtcourse.profiling.operators import Counted, Operator


@dataclass(frozen=True)
class Machine:
    """What one rank has: FLOPs per second of matrix products, bytes per second of its memory, and its link to others.

    Raises ValueError for rates that are not above 0.
    """

    flops: float
    bandwidth: float
    link: Link | None = None

    def __post_init__(self) -> None:
        if not (self.flops > 0 and self.bandwidth > 0):
            raise ValueError(
                "a machine's rates are above 0, in operations and in bytes per second; "
                f"got flops={self.flops} and bandwidth={self.bandwidth}"
            )

    @property
    def ridge(self) -> float:
        """FLOPs per byte from which on an operator is bound by arithmetic."""
        return self.flops / self.bandwidth

    def attainable(self, intensity: float) -> float:
        """FLOPs per second at most, of an operator with so many FLOPs per byte."""
        return min(self.flops, intensity * self.bandwidth)

    def least_seconds(self, flops: float, nbytes: float) -> float:
        """Seconds that so many FLOPs on so many bytes take at least."""
        return max(flops / self.flops, nbytes / self.bandwidth)


@dataclass(frozen=True)
class Placed:
    """One operator on the roofline. least_seconds: what the machine allows; of all its calls, as its seconds."""

    operator: Operator
    least_seconds: float
    bound: str  # "arithmetic" or "memory"

    @property
    def of_roof(self) -> float:
        """The part of its roof that it reaches; above 1 where its tensors lay in a cache."""
        return self.least_seconds / self.operator.seconds

    @property
    def flops_per_second(self) -> float:
        """Reached."""
        return self.operator.flops / self.operator.seconds


@dataclass(frozen=True)
class Roofline:
    """A step's operators on a machine's roofline, those that took longest first.

    sent: bytes that this rank sends in the step, for the link's roof; 0 where it sends none
    """

    machine: Machine
    operators: tuple[Placed, ...]
    sent: int = 0

    @property
    def seconds(self) -> float:
        """Of all operators, one after the other."""
        return sum(each.operator.seconds for each in self.operators)

    @property
    def flops(self) -> int:
        """Of all operators."""
        return sum(each.operator.flops for each in self.operators)

    def share(self, bound: str) -> float:
        """The part of the operators' seconds in those that "arithmetic", or "memory", bounds."""
        if bound not in ("arithmetic", "memory"):
            raise ValueError(f'an operator is bound by "arithmetic" or by "memory"; got {bound!r}')
        return sum(e.operator.seconds for e in self.operators if e.bound == bound) / self.seconds

    @property
    def link_seconds(self) -> float:
        """What sending takes at least, where nothing hides it. ValueError without a link."""
        if self.machine.link is None:
            raise ValueError("the machine has no link: measure it inside two ranks or more")
        return self.sent * self.machine.link.beta

    def rows(self, most: int = 10) -> list[dict[str, Any]]:
        """For plots.table: the operators that took longest."""
        return [
            {
                "operator": str(each.operator),
                "calls": each.operator.calls,
                "FLOPs per byte": each.operator.intensity,
                "bound by": each.bound,
                "ms": each.operator.seconds * 1e3,
                "of its roof": each.of_roof,
            }
            for each in self.operators[:most]
        ]


def roofline(counted: Counted, machine: Machine, *, sent: int = 0) -> Roofline:
    """Each operator of a step on the machine's roofline.

    counted: of `count(step, timed=True)`: on the same device as the machine was measured on
    sent:    bytes that this rank sends in the step

    Raises ValueError where operators were not timed.
    """
    if sent < 0:
        raise ValueError(f"sent is in bytes, 0 or more; got {sent}")
    operators = [each for each in counted.operators if each.flops or each.bytes]
    untimed = [str(each) for each in operators if not each.seconds > 0]
    if untimed or not operators:
        what = f"{untimed[0]} has no time" if untimed else "there are no operators"
        raise ValueError(f"{what}: count(step, timed=True)")
    placed = [
        Placed(
            each,
            machine.least_seconds(each.flops, each.bytes),
            "arithmetic" if each.intensity >= machine.ridge else "memory",
        )
        for each in operators
    ]
    placed.sort(key=lambda each: -each.operator.seconds)
    return Roofline(machine, tuple(placed), sent)


def measured_machine(
    size: int = 1024,
    nbytes: int = 1 << 26,
    dtype: torch.dtype = torch.float32,
    repeats: int = 5,
    link_repeats: int = 5,
) -> Machine:
    """Measures what this rank has. Every rank of the default group calls it, if there is one, for its link.

    size:   of the square matrices whose product tells the matrix rate, in `dtype`
    nbytes: of the tensor whose copy tells the memory's: more than the caches hold
    repeats, link_repeats: of which the best one counts, and of the link the median

    Ranks that share a machine measure together, so each finds what is left for it. Raises ValueError for fewer than 1.
    """
    if min(size, nbytes // dtype.itemsize, repeats, link_repeats) < 1:
        raise ValueError(
            "size, nbytes (of an element or more), repeats and link_repeats are at least 1; "
            f"got {size}, {nbytes}, {repeats} and {link_repeats}"
        )
    where = device.current()
    a, b, c = (torch.ones(size, size, dtype=dtype, device=where) for _ in range(3))
    source = torch.ones(nbytes // dtype.itemsize, dtype=dtype, device=where)
    target = torch.empty_like(source)
    several = dist.is_initialized() and dist.get_world_size() > 1
    if several:
        dist.barrier()
    product = _best(lambda: torch.mm(a, b, out=c), repeats)
    copy = _best(lambda: target.copy_(source), repeats)
    link = measured_link(repeats=link_repeats) if several else None
    return Machine(2 * size**3 / product, 2 * source.nbytes / copy, link)


def _best(work: Any, repeats: int) -> float:
    """Seconds of the fastest of several, after one that does not count."""
    work()
    best = math.inf
    for _ in range(repeats):
        device.synchronize()
        start = events.now()
        work()
        device.synchronize()
        best = min(best, events.now() - start)
    return best
