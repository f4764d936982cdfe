"""Heartbeats on a busy machine: a hundred healthy runs, and how often one of their ranks is called dead or hung.

    python studies/no_false_alarm.py                # until all is measured; writes studies/results/no_false_alarm.json
    python studies/no_false_alarm.py --budget 100   # stop after 100 s; call again to go on where it stopped

Three ranks train for some seconds: a step multiplies matrices, sleeps, and ends in an all-reduce. Beside them processes
spin, more than the machine has cores. The watcher, outside, looks ten times a second, with the limits that a Heartbeat
has if nothing is said: a beat a second, dead or stopped after two, hung after three of the longest steps and 5 s. What
is legal and looks like a hang has a kind of its own, and lasts longer than these 5 s:

    even        steps of 20 ms
    uneven      steps from 5 ms to 1.5 s, drawn for each rank and step
    long first  rank 0 takes 6.5 s for its first step
    long later  steps of 20 ms, one of 2.5 s, and then one of 6 s, on rank 1
    saving      rank 0 announces that it saves, for 6.5 s

Every fourth seed has a run of one more kind, the control: in "hang" rank 1 spins in Python after its steps. There the
watcher has to speak, and of rank 1.

    runs["KIND | SEED"] = alarms   [rank and verdict of each fault that the watcher saw]
                          reasons  the ranks that it named first, in the last look
                          steps    of each rank
                          looks    of the watcher
                          idle     the longest time without a step of a rank that was "running", although three of its
                                   longest would have been over: what the 5 s are there for (in "even" and "uneven")
                          silent   the longest time without a new beat, of any rank
                          load     processes that wanted a core, mean of the last minute
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.course import results_file
from dtcourse.course.results_file import key
from dtcourse.fault_tolerance.watching import Heartbeat, Look, Watcher
from dtcourse.fault_tolerance.watching.verdicts import RUNS
from dtcourse.launch import Cancelled

RESULTS = Path(__file__).parent / "results" / "no_false_alarm.json"
FORMAT = 1
HEALTHY = ("even", "uneven", "long first", "long later", "saving")
HANG, EVERY = "hang", 4  # seeds
LOOK = 0.1


@dataclass(frozen=True)
class Settings:
    """What the numbers depend on; a results file is continued only with the same ones (seeds may grow)."""

    ranks: int = 3
    spinning: int = 3  # processes that take the cores away
    short: float = 0.02  # seconds of a step's sleep
    steps: int = 50  # of the short ones
    legal: float = 6.5  # seconds of what is longer than the floor
    known: float = 2.5  # of the step that makes a later one of 6 s legal
    later: float = 6.0
    uneven: int = 8  # steps
    multiplied: int = 128  # rows of a square matrix


# --- what the ranks do -----------------------------------------------------------------------------------------------


def sleeps(kind: str, seed: int, rank: int, settings: Settings) -> list[float]:
    """Seconds that a rank sleeps in each step."""
    steps = [settings.short] * settings.steps
    if kind == "uneven":
        drawn = random.Random(f"{seed} {rank}")
        return [0.005 * 300 ** drawn.random() for _ in range(settings.uneven)]
    if kind == "long first":
        return [settings.legal if rank == 0 else settings.short, *steps]
    if kind == "long later":
        return [*steps, *([settings.known, settings.later] if rank == 1 else steps[:2])]
    return steps


def train(where: str, kind: str, seed: int, settings: Settings) -> int:
    """One rank. Returns its number of steps."""
    rank, square = dist.get_rank(), torch.ones(settings.multiplied, settings.multiplied)
    planned = sleeps(kind, seed, rank, settings)
    with Heartbeat(where) as watch:
        for step, seconds in enumerate(planned, 1):
            torch.mm(square, square)
            time.sleep(seconds)
            dist.all_reduce(torch.ones(1))
            watch.step(step)
            if kind == "saving" and rank == 0 and step == settings.steps // 2:
                with watch.pause("saving"):
                    time.sleep(settings.legal)
        if kind == HANG:
            spin(rank)
    return len(planned)


def spin(rank: int) -> None:
    """Rank 1 does not come to the collective."""
    while rank == 1:
        pass
    dist.all_reduce(torch.ones(1))


# --- watching --------------------------------------------------------------------------------------------------------


def run(kind: str, seed: int, settings: Settings) -> dict[str, Any]:
    """One launch, watched from its beginning to its end; a hang to the moment at which it is told."""
    start, looks, idle, silent = time.monotonic(), 0, 0.0, 0.0
    alarms: set[str] = set()
    with tempfile.TemporaryDirectory() as where:
        handle = launch(
            train, settings.ranks, where, kind, seed, settings, timeout=None, wait=False
        )
        watcher = Watcher(where, settings.ranks)
        look = watcher.look()
        while not handle.done() and not (kind == HANG and look):
            time.sleep(LOOK)
            look = watcher.look()
            looks += 1
            alarms |= {f"rank {fault.rank} {fault.kind}" for fault in look.faults}
            idle, silent = max(idle, longest_idle(look)), max(silent, longest_silence(look))
        reasons = [fault.rank for fault in look.reasons]
        if kind == HANG:
            handle.cancel()
        try:
            steps = list(handle.result())
        except Cancelled:
            steps = [verdict.step for verdict in look.verdicts]
    return {
        "alarms": sorted(alarms),
        "reasons": reasons,
        "steps": steps,
        "looks": looks,
        "idle": round(idle, 2),
        "silent": round(silent, 2),
        "load": round(os.getloadavg()[0], 1),
        "seconds": round(time.monotonic() - start, 1),
    }


def longest_idle(look: Look) -> float:
    """Of the ranks that run on because of the floor alone."""
    found = [
        verdict.seen.beat.idle
        for verdict in look.verdicts
        if verdict.kind == RUNS
        and verdict.seen.beat is not None
        and verdict.seen.beat.idle > 3 * max(verdict.seen.beat.longest, default=0.0)
    ]
    return max(found, default=0.0)


def longest_silence(look: Look) -> float:
    """Of the ranks that have begun and have not left."""
    seen = [verdict.seen for verdict in look.verdicts]
    return max((one.silent for one in seen if one.beat and not one.beat.left), default=0.0)


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes spin inside the block, and none when we are gone, however."""
    spins = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
    spinning = [subprocess.Popen([sys.executable, "-c", spins]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


# --- the study -------------------------------------------------------------------------------------------------------


def jobs(settings: Settings, seeds: int) -> Iterator[results_file.Job]:
    """All kinds, seed by seed."""
    for seed in range(seeds):
        for kind in (*HEALTHY, HANG):
            if kind != HANG or seed % EVERY == 0:
                yield key(kind, seed), partial(run, kind, seed, settings)


def load(path: Path, settings: Settings) -> dict[str, Any]:
    """The results so far. ValueError where the file was made with other settings."""
    what = (__doc__ or "").split("\n", 1)[0]
    return results_file.load(path, what, format=FORMAT, settings=asdict(settings))


def study(path: Path, settings: Settings, seeds: int, budget: float | None = None) -> bool:
    """Runs what is missing in the file at `path`; True if nothing is missing any more."""
    with busy(settings.spinning):
        return results_file.run_missing(
            load(path, settings), path, jobs(settings, seeds), seeds, budget
        )


def summary(results: dict[str, Any]) -> Iterator[str]:
    """A line per kind."""
    for kind in (*HEALTHY, HANG):
        runs = [one for name, one in results["runs"].items() if name.startswith(f"{kind} |")]
        if not runs:
            continue
        alarmed = sum(bool(one["alarms"]) for one in runs)
        yield (
            f"{kind:11s}{len(runs):4d} runs, {alarmed} with an alarm; longest silence "
            f"{max(one['silent'] for one in runs):.2f} s, longest without a step for the floor's sake "
            f"{max(one['idle'] for one in runs):.2f} s; load {min(one['load'] for one in runs):.1f} to "
            f"{max(one['load'] for one in runs):.1f}"
        )


def main(arguments: list[str] | None = None) -> None:
    """Measures, and prints a line per kind."""
    results_file.command(arguments, __doc__, RESULTS, Settings(), study, load, summary, always=True)


if __name__ == "__main__":
    main()
