"""All-reduce by four routes on this machine's processors: predicted from short experiments, then timed.

    python studies/all_reduce_routes.py                # until all is measured; writes studies/results/...routes.json
    python studies/all_reduce_routes.py --budget 100   # stop after 100 s; call again to go on where it stopped

Wall-clock times of a machine: another one gives others. gloo carries the messages, by the network interface that a
machine has to itself, and the routes are those that lesson 04b's cells write. A run is one launch of p ranks, and has
everything that is compared: experiments and routes, these in an order of its own. It says how many processor seconds
other programs took while it lasted (Linux); where that is more than Settings.others of the machine, it is made again,
up to Settings.tries times, and the least disturbed one is kept.

Experiments are messages of Settings.sizes_sent bytes, k = 1, 2, 4 of them, under two loads:

    one at a time  ranks 0 and 1 send there and back; all others wait
    all at once    every rank sends to the right and receives from the left

either in a row (k messages leave before one is waited for) or in turn (each waits for the one before). Each arrives in
memory that was just allocated, as in the routes.

runs["P | REPETITION"] =
    sent    {load: [[latencies in turn, messages in turn, bytes of one, seconds, seconds by rank 0 alone], ...]}
    gamma   seconds to add a byte
    routes  {ROUTE: {bytes: seconds}}
    others  share of the machine that other programs took;  load: the load average before

`seconds` are the slowest rank's, of five calls in a row, and the fastest of Settings.timed such fives: it had the least
of other programs in it. "By rank 0 alone" is another way: the fastest single call by rank 0's clock, and no rank waits
for the others between two calls, as in the lesson's my_bursts.

The file holds every run with settings, machine, date and versions. It is written after each run, and a run that is in
it is not repeated.
"""

from __future__ import annotations

import random
import resource
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dtcourse import emulation, launch
from dtcourse.course import notebook, results_file
from dtcourse.course.other_programs import undisturbed
from dtcourse.course.results_file import key
from dtcourse.profiling import collective_bench as bench

RESULTS = Path(__file__).parent / "results" / "all_reduce_routes.json"
FORMAT = 1
LOADS = ("one at a time", "all at once")
LESSON = Path(__file__).parents[1] / "lessons" / "04b-choosing-an-all-reduce.ipynb"
CELLS = ("my-ring", "my-root", "my-tree", "my-halving")
ROUTES = ("root", "ring", "tree", "halving and doubling")


@dataclass(frozen=True)
class Settings:
    """What the numbers depend on; a results file is continued only with the same ones (repetitions may grow)."""

    ranks: str = "2 4"
    sizes: str = "4000 100000 400000 1000000"  # bytes of the vectors that are summed
    sizes_sent: str = "4096 262144 1048576"
    timed: int = 15  # fives of an experiment, or of a route and size
    others: float = 0.05
    tries: int = 2


def numbers(words: str) -> list[int]:
    """What a setting of several numbers says."""
    return [int(word) for word in words.split()]


def lesson_routes() -> dict[str, Callable[[torch.Tensor], Any]]:
    """The four routes as a reader of lesson 04b has them: what its cells define."""
    cells = {cell["id"]: cell["source"] for cell in notebook.read(LESSON)["cells"]}
    made: dict[str, Any] = {"torch": torch, "dist": dist}
    for cell in CELLS:
        exec(cells[cell], made)  # noqa: S102 - cells of our own notebook
    return {name: made["mine"][name] for name in ROUTES}


def sent(load: str, settings: Settings) -> list[tuple[float, float, int, float, float]]:
    """Of one load: (latencies in turn, messages in turn, bytes of one, seconds, by rank 0 alone) of each experiment."""
    rank, p, rows = dist.get_rank(), dist.get_world_size(), []
    together = load == "all at once"
    waits = not together and rank > 1
    to, source = ((rank + 1) % p, (rank - 1) % p) if together else (rank ^ 1, rank ^ 1)
    ways = 1 if together else 2
    for nbytes in numbers(settings.sizes_sent):
        ball = torch.zeros(nbytes // 4)
        for rounds, burst in [(1, 1), (1, 2), (1, 4), (2, 1), (4, 1)]:

            def call(ball: torch.Tensor = ball, rounds: int = rounds, burst: int = burst) -> None:
                for _ in range(0 if waits else rounds):
                    _burst(ball, burst, to, source, together)

            call()  # warms up
            seconds = min(bench.seconds_of_one(call) for _ in range(settings.timed))
            dist.barrier()
            alone = []
            for _ in range(settings.timed):
                start = emulation.now()
                call()
                alone.append(emulation.now() - start)
            rows.append((ways * rounds, ways * rounds * burst, nbytes, seconds, min(alone)))
    return rows


def _burst(ball: torch.Tensor, k: int, to: int, source: int, together: bool) -> None:
    """k messages from all at once; or from the even rank of a pair, and then from the odd one."""
    sending = []
    first = together or dist.get_rank() % 2 == 0
    if first:
        sending = [dist.isend(ball, to) for _ in range(k)]
    for _ in range(k):
        dist.recv(torch.empty_like(ball), source)
    if not first:
        sending = [dist.isend(ball, to) for _ in range(k)]
    for work in sending:
        work.wait()


def on_a_rank(settings: Settings, seed: int) -> dict[str, Any]:
    """Everything of a run; rank 0's is kept, but for the processor seconds, which all ranks' are added to."""
    found: dict[str, Any] = {"sent": {load: sent(load, settings) for load in LOADS}}
    found["gamma"] = bench.reduction_seconds_per_byte()
    vectors = {n: torch.ones(n // 4) for n in numbers(settings.sizes)}
    of_lesson = lesson_routes()
    cases = [(name, n) for name in ROUTES for n in vectors]
    random.Random(seed).shuffle(cases)
    routes: dict[str, dict[str, float]] = {name: {} for name in ROUTES}
    for name, n in cases:
        call = partial(of_lesson[name], vectors[n])
        call()
        routes[name][str(n)] = min(bench.seconds_of_one(call) for _ in range(settings.timed))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return found | {"routes": routes, "own": usage.ru_utime + usage.ru_stime}


def measured(p: int, settings: Settings, seed: int) -> dict[str, Any]:
    """One run on p ranks."""
    run = launch(on_a_rank, p, settings, seed, device="cpu", backend="gloo", timeout=300)
    return run[0] | {"own": sum(found["own"] for found in run)}


def jobs(settings: Settings, seeds: int) -> Iterator[results_file.Job]:
    """Everything, repetition by repetition."""
    for seed in range(seeds):
        for p in numbers(settings.ranks):
            run = partial(measured, p, settings, seed)
            yield key(p, seed), partial(undisturbed, run, settings.others, settings.tries)


def load(path: Path, settings: Settings) -> dict[str, Any]:
    """The results so far. ValueError where the file was made with other settings."""
    what = (__doc__ or "").split("\n", 1)[0]
    return results_file.load(path, what, format=FORMAT, settings=asdict(settings))


def study(path: Path, settings: Settings, seeds: int, budget: float | None = None) -> bool:
    """Runs what is missing in the file at `path`; True if nothing is missing any more."""
    results = load(path, settings)
    return results_file.run_missing(results, path, jobs(settings, seeds), seeds, budget)


def summary(results: dict[str, Any]) -> Iterator[str]:
    """A line per number of ranks, route and size: microseconds."""
    for p in numbers(results["settings"]["ranks"]):
        runs = [results["runs"][key(p, seed)] for seed in range(results["seeds"])]
        for name in ROUTES:
            for n in results["settings"]["sizes"].split():
                times = sorted(1e6 * run["routes"][name][n] for run in runs)
                middle = statistics.median(times)
                yield f"{p} ranks {name:21s}{n:>8s} bytes {middle:8.0f} µs, {times[0]:.0f} to {times[-1]:.0f}"
        yield f"others at most {max(run['others'] or 0 for run in runs):.0%}"


def main(arguments: list[str] | None = None) -> None:
    """Measures, and prints a line per setting."""
    results_file.command(arguments, __doc__, RESULTS, Settings(), study, load, summary)


if __name__ == "__main__":
    main()
