"""Launches 1 to 20 of a fresh process: what a lesson pays, which has 16 to 36 of them, with no warm-up.

    python benchmarks/first_launches.py --against OLD     # writes benchmarks/results/first_launches.json

Each round starts a "notebook", a process that has imported PyTorch, and launches four ranks twenty times: a plain
function, and one that imports two of the course's packages, as most of the lessons' do; back to back and with half a
second between; on an idle machine and beside two busy loops. Beside it stands one launch by
torch.multiprocessing.spawn, in a notebook of its own that has launched before, and, with --against, the same twenty
launches with the dtcourse/ in folder OLD: all of a round one after the other, so that a machine whose speed drifts
does the same to all. What is reported are the medians, by launch.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from launch import PAUSE, RANKS, ROOT, Notebook, machine

from reporting.pairs import write

LAUNCHES = 20
WORKS = {"plain": "reduce", "with two of the course's packages": "course"}
PAUSES = {"back to back": 0.0, "half a second between": PAUSE}
RESULTS = Path(__file__).parent / "results" / "first_launches.json"


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """So many processes that compute beside us."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def twenty(package: Path, work: str, pause: float, limit: float) -> list[float]:
    """The seconds of a fresh notebook's first launches with the dtcourse/ in folder `package`."""
    notebook = Notebook("dtcourse", package)
    try:
        return [notebook.seconds(work, limit, after=pause) for _ in range(LAUNCHES)]
    finally:
        notebook.close()


def middle(rounds: list[list[float]]) -> list[float]:
    """The medians over the rounds, by launch."""
    return [round(statistics.median(launch), 3) for launch in zip(*rounds, strict=True)]


def measure(
    work: str, pause: float, other: Path | None, rounds: int, limit: float
) -> dict[str, Any]:
    """What the launches take; beside them spawn's one, and those of `other`."""
    ours, theirs, spawned = [], [], []
    spawn = Notebook("spawn")
    try:
        spawn.seconds(work, limit)
        for _ in range(rounds):
            ours.append(twenty(ROOT, work, pause, limit))
            spawned.append(spawn.seconds(work, limit))
            if other is not None:
                theirs.append(twenty(other, work, pause, limit))
    finally:
        spawn.close()
    found: dict[str, Any] = {"seconds": middle(ours), "spawn": round(statistics.median(spawned), 2)}
    pairs = list(zip(ours, spawned, strict=True))
    each = [[alone / one for one in launches] for launches, alone in pairs]
    found["spawn_over_each"] = [round(times, 1) for times in middle(each)]
    # of a launch, on the average of the twenty
    ratios = [sum(launches) / LAUNCHES / alone for launches, alone in pairs]
    found["ratio"] = round(statistics.median(ratios), 3)
    found["sum"] = round(statistics.median(map(sum, ours)), 2)
    if theirs:
        found["other"] = middle(theirs)
        found["other_sum"] = round(statistics.median(map(sum, theirs)), 2)
        ratios = [sum(a) / sum(b) for a, b in zip(ours, theirs, strict=True)]
        found["sum_over_the_other's"] = round(statistics.median(ratios), 2)
    return found


def main() -> None:
    """Measures, prints what each launch took, and writes the results file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=9, help="fresh processes of each kind")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one launch")
    parser.add_argument("--loops", type=int, nargs="*", default=[0, 2], help="busy loops beside")
    parser.add_argument("--against", type=Path, help="a folder with another version's dtcourse/")
    parser.add_argument("--save-to", type=Path, default=RESULTS)
    asked = parser.parse_args()
    report: dict[str, Any] = {
        "what": f"launches 1 to {LAUNCHES} of a fresh process, {RANKS} ranks that all-reduce, in seconds; "
        f"medians of {asked.rounds} processes",
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
    }
    for loops in asked.loops:
        for kind, work in WORKS.items():
            for words, pause in PAUSES.items():
                name = f"{kind}, {words}, {f'beside {loops} busy loops' if loops else 'idle'}"
                with busy(loops):
                    row = measure(work, pause, asked.against, asked.rounds, asked.limit)
                report[name] = row
                print(
                    f"{name}: {' '.join(f'{s:.2f}' for s in row['seconds'])}; spawn {row['spawn']:.1f}"
                )
                if asked.against:
                    print(f"  other: {' '.join(f'{s:.2f}' for s in row['other'])}", flush=True)
    write(report, asked.save_to)


if __name__ == "__main__":
    main()
