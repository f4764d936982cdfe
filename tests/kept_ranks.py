"""Ranks that stay from one launch to the next, for tests: only those of a template do (dtcourse/launch/again.py)."""

from __future__ import annotations

import gc
import time

from dtcourse import launch
from dtcourse.launch import template


def come_from_template(seconds: float = 120) -> bool:
    """Waits until launches take their ranks from a template: whether they do before so many seconds are over."""
    deadline = time.monotonic() + seconds
    while template.POSSIBLE and time.monotonic() < deadline:
        if launch(frozen, 1, init=False)[0]:
            return True
        time.sleep(0.1)
    return False


def frozen() -> bool:
    """Whether this process's garbage collector passes over what was imported, as a template's ranks' does."""
    return gc.get_freeze_count() > 0
