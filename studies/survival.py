"""Training under a monkey, measured: whether it comes through with the same bits, and what its time was worth.

    python studies/survival.py --seeds 50                # until all is measured; writes studies/results/survival.json
    python studies/survival.py --seeds 50 --budget 100   # stop after 100 s; call again to go on where it stopped
    python studies/survival.py --seeds 50 --copies       # besides, the runs with copies in memory

Four ranks train a small MLP in double for 200 steps, and save every ten of them. Beside them a monkey with a plan drawn
from the seed kills, stops and delays ranks, fills their disks, damages the newest checkpoint and preempts
(dtcourse/fault_tolerance/chaos), and the run is started again each time (recovery.py) until it is done. Then its
weights and its optimizer's states are held against those of a run that nobody disturbed, bit by bit.

Every second seed is DistributedDataParallel, started again with four ranks; the others are VirtualRanks, started again
with two, three or four, another draw each time.

With --copies every fourth seed has one more run, fully sharded, whose ranks keep copies of each other's state in memory
(dtcourse/course/survivor_in_parts.py). A lost rank's successor gets its state from there. This monkey also kills a rank
together with the neighbour that keeps its copy: then all go back to the newest checkpoint. In the end each rank's part
is held against the undisturbed run's.

runs["SEED"] = {what: "DDP" or "virtual ranks", same: whether all bits are the undisturbed run's, log: all lines,
    and what chaos.Report has: starts, failures, kinds, moments, together, damaged, seconds, useful,
    repeated, again}
runs["peer copies | SEED"] = the same, and memory, file: how often all went on from there
runs["undisturbed"] = {seconds: of the run, useful: in steps, bits: a digest of the end, by what}
runs["undisturbed | peer copies"] = the same; bits: by rank

The file is written after each run, and a run that is in it is not repeated.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from dtcourse.course import results_file, survivor_in_parts
from dtcourse.course.results_file import key
from dtcourse.course.survivor import Settings, disturbed, undisturbed
from dtcourse.fault_tolerance.chaos import Report, over_all

RESULTS = Path(__file__).parent / "results" / "survival.json"
FORMAT = 1
UNDISTURBED, COPIES = "undisturbed", survivor_in_parts.WHAT
EVERY = 4  # seeds, of which one has a run with copies


def one(settings: Settings, seed: int, bits: dict[str, str]) -> dict[str, Any]:
    """A run with the monkey, whose log is printed."""
    return shown(seed, disturbed(settings, seed, bits))


def in_parts(settings: Settings, seed: int, bits: list[str]) -> dict[str, Any]:
    """One whose ranks keep copies of each other's state."""
    return shown(seed, survivor_in_parts.disturbed(settings, seed, bits))


def shown(seed: int, run: dict[str, Any]) -> dict[str, Any]:
    """The run, when its log has been printed."""
    print(f"\nseed {seed}, {run['what']}", *run["log"], sep="\n", file=sys.stderr, flush=True)
    return run


def load(path: Path, settings: Settings) -> dict[str, Any]:
    """The results so far. ValueError where the file was made with other settings."""
    what = (__doc__ or "").split("\n", 1)[0]
    return results_file.load(path, what, format=FORMAT, settings=asdict(settings))


def study(
    path: Path,
    settings: Settings,
    seeds: int,
    budget: float | None = None,
    *,
    copies: bool = False,
) -> bool:
    """Runs what is missing in the file at `path`; True if nothing is missing any more. copies: also those runs"""
    results = load(path, settings)
    first = [(UNDISTURBED, partial(undisturbed, settings))]
    results_file.run_missing(results, path, first, seeds, budget)
    bits = results["runs"][UNDISTURBED]["bits"]
    jobs = [(str(seed), partial(one, settings, seed, bits)) for seed in range(seeds)]
    if not copies:
        return results_file.run_missing(results, path, jobs, seeds, budget)
    alone = key(UNDISTURBED, COPIES)
    first = [(alone, partial(survivor_in_parts.undisturbed, settings))]
    results_file.run_missing(results, path, first, seeds, budget)
    by_rank = results["runs"][alone]["bits"]
    jobs += [
        (key(COPIES, seed), partial(in_parts, settings, seed, by_rank))
        for seed in range(0, seeds, EVERY)
    ]
    return results_file.run_missing(results, path, jobs, seeds, budget)


def summary(results: dict[str, Any]) -> Iterator[str]:
    """How many came through, and what the monkey did."""
    names = Report.__dataclass_fields__
    found = [run for name, run in results["runs"].items() if not name.startswith(UNDISTURBED)]
    for copies in (False, True):
        runs = [run for run in found if (run["what"] == COPIES) == copies]
        if not runs:
            continue
        what = f"{len(runs)} runs{' with copies' if copies else ''}"
        yield f"{sum(run['same'] for run in runs)} of {what} end with the undisturbed run's bits"
        yield from over_all([{name: run[name] for name in names} for run in runs])
        if copies:
            memory, file = (sum(run[name] for run in runs) for name in ("memory", "file"))
            yield f"  all went on {memory} times from memory, and {file} times from a file"
    alone = results["runs"][UNDISTURBED]
    share = alone["useful"] / alone["seconds"]
    yield f"undisturbed: goodput {share:.0%}, {alone['seconds']:.1f} s"


def main(arguments: list[str] | None = None) -> None:
    """Runs, and prints what came of it."""
    given = sys.argv[1:] if arguments is None else arguments
    run = partial(study, copies="--copies" in given)
    given = [one for one in given if one != "--copies"]
    results_file.command(given, __doc__, RESULTS, Settings(), run, load, summary, always=True)


if __name__ == "__main__":
    main()
