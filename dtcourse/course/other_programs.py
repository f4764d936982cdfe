"""What other programs take of a machine while a study measures on it, and a run that is made again where it is much."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def processor_seconds() -> float:
    """Of this process and of those that it started and that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def machine_seconds() -> float | None:
    """Processor seconds of all programs, and what a host took from this machine; None where nobody counts them."""
    counted = Path("/proc/stat")
    if not counted.exists():
        return None
    user, nice, system, _, _, irq, softirq, steal = map(int, counted.read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def undisturbed(run: Callable[[], dict[str, Any]], most: float, tries: int) -> dict[str, Any]:
    """The run, made again while other programs take too much of the machine; the least disturbed one is kept.

    run:   what it measured, by name; under "own" the processor seconds of processes that are not this one's children,
           such as launched ranks
    most:  share of the machine that others may take
    tries: how often it is made at most

    Returns what it measured with `seconds`, `load` (the load average before) and `others` (their share; None where
    nobody counts it).
    """
    kept: dict[str, Any] = {}
    for _ in range(tries):
        load, start, own, all_of_them = (
            os.getloadavg()[0],
            time.perf_counter(),
            processor_seconds(),
            machine_seconds(),
        )
        found = run()
        seconds = time.perf_counter() - start
        own = processor_seconds() - own + found.pop("own", 0.0)
        found |= {"seconds": round(seconds, 2), "load": round(load, 2), "others": None}
        if all_of_them is not None:
            taken = (machine_seconds() or 0.0) - all_of_them - own
            found["others"] = round(max(0.0, taken) / seconds / (os.cpu_count() or 1), 3)
        if not kept or (found["others"] or 0) < (kept["others"] or 0):
            kept = found
        if not kept["others"] or kept["others"] <= most:
            break
        time.sleep(0.5)
    return kept
