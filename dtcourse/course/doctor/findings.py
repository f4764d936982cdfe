"""What is found, and how another program is asked."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

GB = 2**30


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. state: "ok", "note" (some lessons will miss it) or "problem" (all will)."""

    name: str
    state: str
    found: str
    advice: str = ""


def said(command: list[str]) -> str:
    """What a program prints; empty where it is not there, or takes too long."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
