"""A processor as the roofline model sees it: so many operations and so many bytes of memory traffic per second.

An operation takes max(FLOPs / flops, bytes / bandwidth) seconds: it is bound by arithmetic or by memory, and the other
of the two is hidden behind it (Williams, Waterman and Patterson 2009, "Roofline").
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class EmulatedDevice:
    """A processor: `launch(step, 4, devices=EmulatedDevice(flops=10e12, bandwidth=1e12))`.

    flops:     floating-point operations per second
    bandwidth: bytes per second, to and from its memory

    A list of devices, one per rank, makes a cluster of unequal ones. Raises ValueError for anything that is none.
    """

    flops: float = math.inf
    bandwidth: float = math.inf

    def __post_init__(self) -> None:
        for name, value, unit in (
            ("flops", self.flops, "operations per second"),
            ("bandwidth", self.bandwidth, "bytes per second"),
        ):
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (number and value > 0):  # so neither is NaN
                raise ValueError(f"{name} is in {unit}, above 0; got {value!r}")

    def seconds(self, flops: float, nbytes: float) -> float:
        """Time of one operation of so many FLOPs that reads and writes so many bytes."""
        return max(flops / self.flops, nbytes / self.bandwidth)

    def slower(self, factor: float) -> EmulatedDevice:
        """The same device at 1 / factor of its speed."""
        return EmulatedDevice(self.flops / factor, self.bandwidth / factor)
