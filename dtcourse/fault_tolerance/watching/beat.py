"""What a rank says of itself with each beat. A few hundred bytes, more when it is late and shows its stacks."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from dtcourse.fault_tolerance.watching.process import Process


@dataclass(frozen=True)
class Beat:
    """One beat. Seconds are differences on the rank's own clock: no clock is compared with another machine's.

    number:      of the beat, from 1 on; one that has changed is a new one
    attempt:     which start of the job it is: beats of an earlier one are not looked at
    interval:    seconds between two beats
    step:        the number of the last step that was done; None before the first
    idle:        seconds since then (or since the beginning), without pauses and without what `Progress` leaves out
    since_step:  the same with all that `idle` leaves out
    longest:     seconds of its three longest steps, the longest first
    floor:       seconds without a step that are never a hang
    gap:         the longest time that this rank was silent, and went on
    pausing:     what was announced with `pause`; empty where nothing is
    paused:      seconds of it so far
    pause_limit: seconds that it may take; None: any
    doing:       where the loop's thread is: "waited in all_reduce(), called in train() at ..."
    waits:       whether that is a wait for other ranks
    stacks:      of all threads, where the rank is late; else empty
    left:        how it has ended: "returned", or "raised ValueError"; empty while it trains
    unsaid:      how many beats could not be written before this one
    """

    rank: int
    number: int
    process: Process
    attempt: int = 0
    interval: float = 1.0
    step: int | None = None
    idle: float = 0.0
    since_step: float = 0.0
    longest: tuple[float, ...] = ()
    floor: float = 5.0
    gap: float = 0.0
    pausing: str = ""
    paused: float = 0.0
    pause_limit: float | None = None
    doing: str = ""
    waits: bool = False
    stacks: str = ""
    left: str = ""
    unsaid: int = 0

    @property
    def silence_limit(self) -> float:
        """Seconds without a beat after which a rank is dead or stopped: two intervals, and no less than 2 s."""
        return max(2 * self.interval, 2.0)

    @property
    def step_limit(self) -> float | None:
        """Seconds without a step after which it is hung: three of its longest. None before a first one is known."""
        return None if self.step is None else max(3 * max(self.longest, default=0.0), self.floor)

    @property
    def is_late(self) -> bool:
        """Whether it beats and has made no step for too long."""
        if self.left:
            return False
        if self.pausing:
            return self.pause_limit is not None and self.paused > self.pause_limit
        return self.step_limit is not None and self.idle > self.step_limit

    def packed(self) -> bytes:
        """For a file or a store."""
        return json.dumps(asdict(self)).encode()


def unpacked(data: bytes) -> Beat:
    """What `packed` made. ValueError for what it did not make."""
    try:
        fields = json.loads(data)
        fields["process"] = Process(**fields["process"])
        fields["longest"] = tuple(fields["longest"])
        return Beat(**fields)
    except (TypeError, KeyError) as error:
        raise ValueError(f"this is no beat of a rank: {data[:80]!r}") from error
