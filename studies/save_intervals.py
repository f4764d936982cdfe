"""How often to save: what Young's and Daly's intervals waste, beside the best one that a search finds.

    python studies/save_intervals.py --seeds 1000    # writes studies/results/save_intervals.json

A job saves and fails on a virtual clock (dtcourse/fault_tolerance/failing_job.py), 1,000 seeds of 200 failures each.
The time from one failure to the next is exponential (shape 1) or Weibull: below 1 failures come in clusters, above 1
they are spaced. A save takes a part of the mean time between failures, from a thousandth to as long; a restart takes
none of it, or a twentieth, which adds the same to all. The best interval is searched among 97, from a tenth of Young's
to ten times it, on as many *other* seeds, so that it does not profit from the failures on which all three are compared.
Near the least the waste is so flat that chance picks among neighbours, so a formula may come out a little better.

Besides, an asynchronous save: training stops for a tenth of it, and the next save waits until it is complete. Young and
Daly get what stops training, and where they answer with less than the rest of the save takes, that is taken.

runs["SHAPE | SAVE | RESTART | written"] = (save, restart as parts of the mean time between failures; written where it
                                            is asynchronous: from the save's begin until it is complete)
    intervals: {"Young", "Daly", "searched"}, in the mean time between failures
    waste:     of each, the mean over the seeds of the part of the time that was no saved work
    expected:  of each, by the sum over a life (interval.py), which knows nothing of the seeds
    more:      of Young and Daly, what they waste more than the searched one: [mean, low, high], a 95% interval of the
               differences within a seed
    least:     what the sum says of the best interval of all
    seconds:   of the machine

One machine does it in less than a minute of processor time. The file holds the settings, machine, date and versions.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dtcourse.course import curves, results_file
from dtcourse.course.results_file import key
from dtcourse.fault_tolerance.failing_job import draw_lives, wasted
from dtcourse.fault_tolerance.interval import (
    FailingJob,
    best_interval,
    daly,
    expected_waste,
    young,
)

RESULTS = Path(__file__).parent / "results" / "save_intervals.json"
FORMAT = 1
SHAPES = (0.5, 0.7, 1.0, 1.5)
SAVES = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
RESTARTS = (0.0, 0.05)
STALL = 0.1  # of an asynchronous save's time, what stops training
FORMULAS: dict[str, Callable[[float, float], float]] = {"Young": young, "Daly": daly}


@dataclass(frozen=True)
class Settings:
    """What the numbers depend on; a results file is continued only with the same ones."""

    failures: int = 200
    candidates: int = 97
    widest: float = 10.0


def job_of(save: float, restart: float, asynchronous: bool) -> FailingJob:
    """In units of the mean time between failures."""
    if asynchronous:
        return FailingJob(STALL * save, 1.0, restart, written=save)
    return FailingJob(save, 1.0, restart)


def searched(settings: Settings, job: FailingJob, lives: torch.Tensor) -> float:
    """The interval with the least mean waste on these lives. It lies inside the candidates."""
    widest = settings.widest
    factors = torch.logspace(-1, 1, settings.candidates, base=widest, dtype=torch.double)
    candidates = (young(job.save, job.mtbf) * factors).tolist()
    found = [wasted(job, tau, lives).mean().item() for tau in candidates]
    best = found.index(min(found))
    assert 0 < best < len(candidates) - 1, "the best interval lies at an end of the candidates"
    return candidates[best]


def measured(settings: Settings, seeds: int, job: FailingJob, shape: float) -> dict[str, Any]:
    """One job under all three intervals."""
    start = time.process_time()
    lives, others = (
        draw_lives(1.0, settings.failures, range(first, first + seeds), shape)
        for first in (0, seeds)
    )
    intervals = {
        n: max(formula(job.save, job.mtbf), job.shortest) for n, formula in FORMULAS.items()
    }
    intervals["searched"] = searched(settings, job, others)
    waste = {name: wasted(job, tau, lives).tolist() for name, tau in intervals.items()}
    more = {}
    for name in FORMULAS:
        differences = [a - b for a, b in zip(waste[name], waste["searched"], strict=True)]
        more[name] = [statistics.mean(differences), *curves.interval(differences)]
    guess = young(job.save, job.mtbf)
    best = best_interval(
        lambda tau: expected_waste(job, tau, shape),
        guess / settings.widest,
        guess * settings.widest,
    )
    return {
        "intervals": _rounded(intervals),
        "waste": _rounded({name: statistics.mean(values) for name, values in waste.items()}),
        "expected": _rounded({n: expected_waste(job, tau, shape) for n, tau in intervals.items()}),
        "more": {name: [float(f"{x:.4g}") for x in values] for name, values in more.items()},
        "least": float(f"{expected_waste(job, best, shape):.6g}"),
        "seconds": round(time.process_time() - start, 2),
    }


def _rounded(numbers: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{x:.6g}") for name, x in numbers.items()}


def jobs(settings: Settings, seeds: int) -> Iterator[results_file.Job]:
    """Every shape, save and restart; asynchronous ones without a restart."""
    for shape in SHAPES:
        for save in SAVES:
            for restart in RESTARTS:
                run = partial(measured, settings, seeds, job_of(save, restart, False), shape)
                yield key(shape, save, restart), run
            job = job_of(save, 0.0, True)
            yield (
                key(shape, f"{job.save:g}", 0.0, save),
                partial(measured, settings, seeds, job, shape),
            )


def load(path: Path, settings: Settings) -> dict[str, Any]:
    """The results so far. ValueError where the file was made with other settings."""
    what = (__doc__ or "").split("\n", 1)[0]
    return results_file.load(path, what, format=FORMAT, settings=asdict(settings))


def study(path: Path, settings: Settings, seeds: int, budget: float | None = None) -> bool:
    """Runs what is missing in the file at `path`; True if nothing is missing any more.

    Raises ValueError where the file has another number of seeds: each run is of all of them.
    """
    torch.set_num_threads(1)
    results = load(path, settings)
    if results.get("seeds", seeds) != seeds:
        raise ValueError(
            f"{path} has {results['seeds']} seeds in each run, and {seeds} are asked for: give the same number, or "
            "another --out"
        )
    return results_file.run_missing(results, path, jobs(settings, seeds), seeds, budget)


def summary(results: dict[str, Any]) -> Iterator[str]:
    """A line per job: what the searched interval wastes, and what the formulas waste more, in percent of it."""
    for name, run in results["runs"].items():
        least = run["waste"]["searched"]
        more = "  ".join(
            f"{formula} {run['intervals'][formula]:.3f} "
            f"{100 * mean / least:+6.2f}% ({100 * low / least:+.2f} to {100 * high / least:+.2f})"
            for formula, (mean, low, high) in run["more"].items()
        )
        yield f"{name:28s} searched {run['intervals']['searched']:.3f} wastes {least:.4f}  {more}"


def main(arguments: list[str] | None = None) -> None:
    """Measures, and prints a line per job."""
    results_file.command(arguments, __doc__, RESULTS, Settings(), study, load, summary)


if __name__ == "__main__":
    main()
