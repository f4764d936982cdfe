"""A stretch of a micro-batch between two places where the host waits: a block, the embedding, the head.

The device works off what the host launches. So a stretch takes as long as the longer of both; what the host takes more
is the part "host": the device waits for work, as it does where layers are small.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dtcourse.planner.hardware import Hardware
from dtcourse.planner.kernels import Kernel
from dtcourse.planner.messages import FORWARD, INPUT, Messages
from dtcourse.planner.software import Software

WEIGHT = "weight"
PHASES = (FORWARD, INPUT, WEIGHT)
Parts = dict[str, float]
COMPILED = (
    0.5  # launches that are left where element-wise kernels are fused by a compiler (an estimate)
)


@dataclass(frozen=True)
class Segment:
    """parts: by phase, what its seconds are made of; flops: by phase, operations performed."""

    parts: dict[str, Parts]
    flops: dict[str, float]

    def seconds(self, *phases: str) -> float:
        """Of these phases, of one micro-batch."""
        return sum(sum(self.parts[phase].values()) for phase in phases)


def add(total: Parts, more: Mapping[str, float], times: float = 1.0) -> None:
    """More seconds (or operations) of each kind."""
    for kind, number in more.items():
        total[kind] = total.get(kind, 0.0) + times * number


def segment(
    kernels: Sequence[Kernel],
    messages: Messages,
    hardware: Hardware,
    software: Software,
    again: bool,
) -> Segment:
    """again: it is a block, of which the program may compute something twice."""
    parts: dict[str, Parts] = {phase: defaultdict(float) for phase in PHASES}
    launches: Parts = defaultdict(float)
    flops: Parts = defaultdict(float)
    for kernel in kernels:
        for phase, share in _phases(kernel, software, again):
            parts[phase][kernel.kind] += share * kernel.seconds
            launches[phase] += share * kernel.launches
            flops[phase] += share * kernel.flops
    sent = software.collective_launches
    for phase in (FORWARD, INPUT):
        add(parts[phase], messages.seconds[phase])
        launches[phase] += sent * messages.count[phase]
    if again and software.again:
        add(parts[INPUT], messages.seconds[FORWARD], software.again)
        launches[INPUT] += software.again * sent * messages.count[FORWARD]
    few = COMPILED if software.compiled else 1.0
    # Gradients of inputs and of weights are launched in turns: the host's time is that of both.
    forward = few * launches[FORWARD] * hardware.launch - sum(parts[FORWARD].values())
    backward = few * (launches[INPUT] + launches[WEIGHT]) * hardware.launch
    backward -= sum(parts[INPUT].values()) + sum(parts[WEIGHT].values())
    parts[FORWARD]["host"] += max(0.0, forward)
    parts[INPUT]["host"] += max(0.0, backward)
    return Segment({phase: dict(found) for phase, found in parts.items()}, dict(flops))


def _phases(kernel: Kernel, software: Software, again: bool) -> list[tuple[str, float]]:
    """In which phases it runs, and how often."""
    if kernel.part != FORWARD or not again:
        return [(kernel.part, 1.0)]
    if software.recompute == "selective" and kernel.core:
        return [(FORWARD, 1.0), (INPUT, 1.0)]
    if software.recompute == "ops":
        share = 0.0 if kernel.core else 0.5 if kernel.kind == "products" else 1.0
        return [(FORWARD, 1.0), (INPUT, share)]
    if kernel.last and software.early_stop:
        return [(FORWARD, 1.0)]
    return [(FORWARD, 1.0), (INPUT, software.again)] if software.again else [(FORWARD, 1.0)]
