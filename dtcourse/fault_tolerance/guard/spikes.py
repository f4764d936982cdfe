"""Which loss is a spike: one that lies many deviations above the median of the last losses.

Mean and standard deviation follow a spike: after one, the next is hardly unusual any more. Median and median absolute
deviation stay where they are until half of the window is spoiled (Huber, "Robust Statistics"). What is judged to be a
spike never enters the window.

Losses of few samples have a long tail, so that one far out may be an honest one: look at `deviations` of healthy steps
before the threshold is set. Losses that fall lie below the median of those before: training alone raises no alarm.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any

NORMAL = 1.4826  # a normal distribution's standard deviation, in its median absolute deviations


class Spikes:
    """The last losses, and how far a new one lies above them. Its state is a list of numbers, as state_dict has it.

    threshold: deviations above the median from which on a loss is a spike
    window:    how many losses are remembered
    least:     how many there have to be before any is judged
    floor:     the smallest deviation, as a part of the median: where losses hardly vary, small changes are no spikes

    Raises ValueError for a threshold or a floor that is not above 0, or a window smaller than least, or least below 3.
    """

    def __init__(
        self, threshold: float = 8.0, window: int = 64, least: int = 16, floor: float = 0.01
    ) -> None:
        if not threshold > 0 or not floor > 0 or not 3 <= least <= window:
            raise ValueError(
                "threshold and floor are above 0, and a window holds at least the losses that there have to be, 3 or "
                f"more; got threshold {threshold}, floor {floor}, window {window}, least {least}"
            )
        self.threshold, self.least, self.floor = threshold, least, floor
        self._losses: deque[float] = deque(maxlen=window)

    def deviations(self, loss: float) -> float:
        """How many deviations above the median it lies; below 0 under it, and 0 while there are too few losses."""
        if len(self._losses) < self.least:
            return 0.0
        middle = statistics.median(self._losses)
        spread = NORMAL * statistics.median(abs(one - middle) for one in self._losses)
        # The floor of a median of 0 would be 0 too.
        return (loss - middle) / max(spread, self.floor * abs(middle), 1e-12)

    def is_spike(self, loss: float) -> bool:
        """Whether it is as far above the median as the threshold, or infinite."""
        return self.deviations(loss) >= self.threshold or not math.isfinite(loss)

    def add(self, loss: float) -> None:
        """Remembers the loss of a step that was taken, forgets the oldest. ValueError for one that is not finite."""
        if not math.isfinite(loss):
            raise ValueError(f"only finite losses are remembered; got {loss}")
        self._losses.append(loss)

    def state_dict(self) -> dict[str, Any]:
        """The losses, oldest first."""
        return {"losses": list(self._losses)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from there."""
        self._losses.clear()
        self._losses.extend(state["losses"])
