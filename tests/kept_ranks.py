"""Ranks that stay from one launch to the next, for tests: only those of a template do (dtcourse/launch/again.py)."""

from __future__ import annotations

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
    """Whether this process is a copy of a template's, or of another that has loaded the course: such a rank is kept.

    That the collector passes over something proves nothing: the fork server's own ranks have PyTorch out of its sight.
    """
    from dtcourse.launch import again

    return again._frozen
