"""A stretch of a micro-batch: a block, the embedding, the head. What the device does in it, and what the host launches.

The device works off what the host launches, and the host runs ahead of it, over blocks and from the forward into the
backward pass. So a micro-batch takes as long as the longer of both does in all; what the host takes more is the part
"host": the device waits for work, as it does where layers are small. (That the host may be 1,024 launches ahead at
most, CUDA's queue, is left out.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dtcourse.planner.kernels import Kernel
from dtcourse.planner.messages import FORWARD, INPUT, Messages
from dtcourse.planner.setting import Setting
from dtcourse.planner.software import Software

WEIGHT = "weight"
PHASES = (FORWARD, INPUT, WEIGHT)
Parts = dict[str, float]


@dataclass(frozen=True)
class Segment:
    """parts: by phase, what its seconds are made of; flops, host: by phase, operations, and the host's seconds."""

    parts: dict[str, Parts]
    flops: dict[str, float]
    host: Parts

    def seconds(self, *phases: str) -> float:
        """Of these phases, of one micro-batch."""
        return sum(sum(self.parts[phase].values()) for phase in phases)


def add(total: Parts, more: Mapping[str, float], times: float = 1.0) -> None:
    """More seconds (or operations) of each kind."""
    for kind, number in more.items():
        total[kind] = total.get(kind, 0.0) + times * number


def segment(
    name: str, kernels: Sequence[Kernel], messages: Messages, setting: Setting, again: bool
) -> Segment:
    """name: of Measured's stretches; again: it is a block, of which the program may compute something twice."""
    hardware, software = setting.hardware, setting.software
    parts: dict[str, Parts] = {phase: defaultdict(float) for phase in PHASES}
    launches: Parts = defaultdict(float)
    flops: Parts = defaultdict(float)
    known = hardware.measured.stretches.get(name) if hardware.measured else None
    for kernel in kernels:
        # A compiler fuses what only moves bytes; products and attention are launched as ever.
        left = software.compiled_launches if software.compiled and kernel.kind == "memory" else 1.0
        for phase, share in _phases(kernel, software, again):
            flops[phase] += share * kernel.flops
            if known is None:
                parts[phase][kernel.kind] += share * kernel.seconds
                launches[phase] += share * kernel.launches * left
    for phase, seconds in zip(PHASES, known or (), strict=False):
        parts[phase]["measured"] = seconds
    sent = software.collective_launches
    for phase in (FORWARD, INPUT):
        add(parts[phase], messages.seconds[phase])
        launches[phase] += sent * sum(messages.count[phase].values())
    for kind, share in _again(setting).items() if again else ():
        seconds, count = messages.seconds[FORWARD][kind], messages.count[FORWARD][kind]
        if kind == "tensor" and _stops(setting, name == "experts"):
            seconds, count = seconds - messages.last, count - 1
        add(parts[INPUT], {kind: seconds}, share)
        launches[INPUT] += share * sent * count
    host = {} if known else {phase: n * hardware.launch for phase, n in launches.items()}
    return Segment({phase: dict(found) for phase, found in parts.items()}, dict(flops), host)


def wait_for_host(parts: dict[str, Parts], host: Parts) -> None:
    """Adds what the host takes longer than the device, over a micro-batch, where it does."""
    device = {phase: sum(parts[phase].values()) for phase in PHASES}
    longer = sum(host.values()) - sum(device.values())
    if longer <= 0:
        return
    # Gradients of inputs and of weights are launched in turns: what is waited for in both counts to the first.
    backward = host.get(INPUT, 0.0) + host.get(WEIGHT, 0.0) - device[INPUT] - device[WEIGHT]
    forward = min(longer, max(0.0, longer - max(0.0, backward)))
    add(parts[FORWARD], {"host": forward})
    add(parts[INPUT], {"host": longer - forward})


def _again(setting: Setting) -> dict[str, float]:
    """The part of a block's forward messages of each kind that is sent once more where it is computed again."""
    software, layout = setting.software, setting.layout
    if software.recompute == "selective":
        return {"context": 1.0}
    if software.recompute == "ops":
        # What reduce-scatters and attention's core made is kept; ulysses has messages before and behind that core.
        gathers = 0.5 if layout.sequence_parallel else 1.0
        return {"tensor": gathers, "context": float(layout.context == "ulysses"), "experts": 1.0}
    return dict.fromkeys(("tensor", "context", "experts"), software.again) if software.again else {}


def _stops(setting: Setting, experts: bool) -> bool:
    """Whether a block that is computed again ends before its last sum over tensor ranks, which nobody asks for; what
    experts made the gate's gradient asks for. (Of "ops" the reduce-scatters are none of what is sent again.)
    """
    software, layout = setting.software, setting.layout
    if not software.early_stop or (experts and not setting.model.shared) or layout.tp == 1:
        return False
    return not (software.recompute == "ops" and layout.sequence_parallel)


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
