"""What a test needs to know of the processes that wait for the next launch."""

from __future__ import annotations

import time

import pytest

from dtcourse import launch
from dtcourse.launch import standby, template

# A play of many seconds that proves something of launching alone: in CI wherever that has changed, else by turns.
LONG_PLAY = pytest.mark.stands_on(
    "dtcourse/launch/", "dtcourse/torch_private/", "tests/launch/settling.py"
)


def settle(world_size: int) -> set[int]:
    """Launches until a template is there and as many spares as such a launch uses, and no more; their process ids."""
    deadline = time.monotonic() + 120
    while True:
        for _ in range(4):  # as many launches as are remembered
            launch(abs, world_size, -1, init=False)
        waiting = standby.pids()
        if len(waiting) == 1 + world_size and template.is_complete():
            return waiting
        assert time.monotonic() < deadline, (
            f"{waiting} wait; expected a template, {world_size} spares"
        )
        time.sleep(0.2)
