"""How much memory is left for what only makes launches faster."""

from __future__ import annotations

from contextlib import suppress

# Bytes that must be free for it: each spare has about 20 MB of its own, a template in huge pages 150 MB.
ENOUGH = 2 << 30


def available() -> int:
    """Bytes, as Linux estimates them; 0 elsewhere, where there is no template either."""
    with suppress(OSError), open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) << 10
    return 0
