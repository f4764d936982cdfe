"""Collective communication, built on send and receive alone."""

from __future__ import annotations

import importlib
from typing import Any

_LAZY = {"EmulatedNetwork": "dtcourse.emulation", "Traffic": "dtcourse.collectives.traffic"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
