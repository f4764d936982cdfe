"""Training under a monkey, measured: whether it comes through with the same bits, and what its time was worth.

    python studies/survival.py --seeds 50                # until all is measured; writes studies/results/survival.json
    python studies/survival.py --seeds 50 --budget 100   # stop after 100 s; call again to go on where it stopped

Four ranks train a small MLP in double for 200 steps, and save every ten of them. Beside them a monkey with a plan drawn
from the seed kills, stops and delays ranks, fills their disks, damages the newest checkpoint and preempts
(dtcourse/fault_tolerance/chaos), and the run is started again each time (recovery.py) until it is done. Then its
weights and its optimizer's states are held against those of a run that nobody disturbed, bit by bit.

Every second seed is DistributedDataParallel, started again with four ranks; the others are VirtualRanks, started again
with two, three or four, another draw each time.

runs["SEED"] = {what: "DDP" or "virtual ranks", same: whether all bits are the undisturbed run's, log: all lines,
    and what chaos.Report has: starts, failures, kinds, moments, together, damaged, seconds, useful,
    repeated, again}
runs["undisturbed"] = {seconds: of the run, useful: in steps, bits: a digest of the end, by what}

The file is written after each run, and a run that is in it is not repeated.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from dtcourse.course import results_file
from dtcourse.course.survivor import Settings, disturbed, undisturbed
from dtcourse.fault_tolerance.chaos import Report, over_all

RESULTS = Path(__file__).parent / "results" / "survival.json"
FORMAT = 1


def one(settings: Settings, seed: int, bits: dict[str, str]) -> dict[str, Any]:
    """A run with the monkey, whose log is printed."""
    run = disturbed(settings, seed, bits)
    print(f"\nseed {seed}, {run['what']}", *run["log"], sep="\n", file=sys.stderr, flush=True)
    return run


def load(path: Path, settings: Settings) -> dict[str, Any]:
    """The results so far. ValueError where the file was made with other settings."""
    what = (__doc__ or "").split("\n", 1)[0]
    return results_file.load(path, what, format=FORMAT, settings=asdict(settings))


def study(path: Path, settings: Settings, seeds: int, budget: float | None = None) -> bool:
    """Runs what is missing in the file at `path`; True if nothing is missing any more."""
    results = load(path, settings)
    first = [("undisturbed", partial(undisturbed, settings))]
    results_file.run_missing(results, path, first, seeds, budget)
    bits = results["runs"]["undisturbed"]["bits"]
    jobs = ((str(seed), partial(one, settings, seed, bits)) for seed in range(seeds))
    return results_file.run_missing(results, path, jobs, seeds, budget)


def summary(results: dict[str, Any]) -> Iterator[str]:
    """How many came through, and what the monkey did."""
    runs = [run for name, run in results["runs"].items() if name != "undisturbed"]
    names = Report.__dataclass_fields__
    yield f"{sum(run['same'] for run in runs)} of {len(runs)} runs end with the undisturbed run's bits"
    yield from over_all([{name: run[name] for name in names} for run in runs])
    alone = results["runs"]["undisturbed"]
    share = alone["useful"] / alone["seconds"]
    yield f"undisturbed: goodput {share:.0%}, {alone['seconds']:.1f} s"


def main(arguments: list[str] | None = None) -> None:
    """Runs, and prints what came of it."""
    results_file.command(arguments, __doc__, RESULTS, Settings(), study, load, summary, always=True)


if __name__ == "__main__":
    main()
