"""What torch.profiler saw, as a Timeline: kernels of a GPU, or the operators of a CPU,
communication apart from compute.

    with torch.profiler.profile() as profiler:
        step()
    timeline = timeline_of(profiler)          # plots draws it; timeline.exposed(rank) is what no kernel hides

Times are the profiler's own (seconds from an origin of its own): two ranks' timelines cannot be laid side by side.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from dtcourse.events import Event, Timeline

# Names that NCCL's kernels and c10d's operators begin with, in the profiler's spelling.
_COMMUNICATION = ("nccl", "gloo:", "c10d::", "record_param_comms")


def timeline_of(profiler: torch.profiler.profile) -> Timeline:
    """The events of a finished profile on this rank: those of the GPU where it has any, else those of the CPU."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    seen = [event for event in profiler.events() or [] if event.time_range.elapsed_us() > 0]
    on_gpu = [event for event in seen if event.device_type != torch.autograd.DeviceType.CPU]
    return Timeline(
        Event(
            name=event.name,
            kind=kind_of(event.name),
            rank=rank,
            start=event.time_range.start / 1e6,
            end=event.time_range.end / 1e6,
            lane=f"stream {event.device_resource_id}" if on_gpu else f"thread {event.thread}",
        )
        for event in on_gpu or seen
    )


def kind_of(name: str) -> str:
    """Says "communication", "memory" (copies and fills) or "compute", from a kernel's or an operator's name."""
    if name.lower().startswith(_COMMUNICATION):
        return "communication"
    return "memory" if name.startswith(("Memcpy", "Memset")) else "compute"


class Profile:
    """Profiles `steps` steps from `start` on: for a monitor, which must not pay for a profile all the time."""

    def __init__(self, steps: int) -> None:
        self._left = steps
        self._profiler: Any = None
        self._running = False

    def start(self) -> None:
        """The next step is the first one seen."""
        self._profiler = torch.profiler.profile()
        self._profiler.start()
        self._running = True

    def step(self) -> None:
        """A step is over."""
        if self._running:
            self._left -= 1
            if self._left == 0:
                self._stop()

    def exposed_share(self) -> float:
        """The share of the time seen in which kernels of communication ran and none of compute."""
        if self._profiler is None:
            return 0.0
        if self._running:
            self._stop()
        timeline = timeline_of(self._profiler)
        rank = timeline.ranks[0] if len(timeline) else 0
        return timeline.exposed(rank) / timeline.span if len(timeline) else 0.0

    def _stop(self) -> None:
        self._profiler.stop()
        self._running = False
