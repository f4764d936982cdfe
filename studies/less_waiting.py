"""Parameter servers that wait less, measured: the loss that gradients reach on handwritten digits, and when they come.

    python studies/less_waiting.py                    # until all is measured; writes studies/results/less_waiting.json
    python studies/less_waiting.py --budget 100       # stop after 100 s; call again to go on where it stopped

Workers and their server in one process, in the order in which gradients come: a queue of events in simulated time,
which calls the rules of dtcourse.asynchronous themselves. So the order is the same on every machine. Tests compare it
with real servers and workers: what they compute for an order of arrivals, that order where messages force it, and the
seconds of synchronous training on an emulated cluster's virtual clock.

1. Gradients. A worker takes one unit of time for a gradient, times what its pace says: "equal" 1 + an exponential of
   mean 0.2, another draw for each gradient; "one slow" the same, and worker 1 takes 4 times as long; "unequal" the
   same, and the workers' factors grow evenly (on a log scale) from 1 to 8. Messages take no time. An asynchronous
   gradient counts 1/8 whatever the number of workers, so that "asynchronous, n workers" differ in staleness, n - 1 on
   average, and in nothing else; with one worker there is none. Seeds draw weights, images, batches and times; all
   methods of a seed share the first two.

   A method's learning rate is tuned on seeds of their own, for each pace, over rates in steps of sqrt(3): see
   curves.tuned_lr, which goes on until the best lies inside.

   runs["tuned | PACE | METHOD"] =
       ends     {rate: [loss on images held out after the last gradient, by tuning seed]}; None where it is no number
       best     the rate that was chosen

   With it, and with one that all methods have in common (COMMON), each is then run on other seeds:

   runs["gradients | PACE | METHOD | SEED"] =
       losses     {rate: [loss on images held out, after every so many gradients have come, dropped ones too]}; None
                  from where it is no number any more. A look is after Settings.every gradients
       times      [units of time at each look]
       updates    [updates made by each look]
       staleness  {staleness: how many applied gradients had it}
       slow       share of the applied gradients that are worker 1's; the dropped ones: dropped

2. Seconds. The same queue without training, on a cluster whose server is one rank: eight workers, two models and four
   links (dtcourse/course/stand_in.py). A worker pushes the model's bytes and pulls as many; the server's port receives
   one message at a time and sends one at a time. Workers compute as long as in 1.

   runs["seconds | MODEL | GBIT/S | PACE"] = {compute: seconds of a gradient where nobody is slow,
       step: {METHOD: seconds in which the server applies eight gradients, mean over Settings.timed of each worker}}

The file holds every run with settings, machine, date and versions. It is written after each run, and a run that is in
it is not repeated.
"""

from __future__ import annotations

import heapq
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from dtcourse.asynchronous import (
    Asynchronous,
    BackupWorkers,
    BoundedStaleness,
    Synchronous,
    inverse_staleness,
)
from dtcourse.course import curves, results_file
from dtcourse.course.replicas import Digits, Replicas
from dtcourse.course.results_file import key
from dtcourse.course.stand_in import LATENCY, LINKS, WORKLOADS
from dtcourse.emulation import EmulatedNetwork
from dtcourse.emulation.network import Ports

RESULTS = Path(__file__).parent / "results" / "less_waiting.json"
FORMAT = 2
COMMON = 0.3
TUNING = 1000  # the first of the seeds on which learning rates are tuned
PACES = ("equal", "one slow", "unequal")
WORKERS = 8  # and a gradient counts 1/8
HEADER = 16  # bytes before a gradient


@dataclass(frozen=True)
class Settings:
    """What the numbers depend on; a results file is continued only with the same ones (seeds may grow)."""

    batch: int = 8  # of each gradient
    gradients: int = 10240
    every: int = 320  # gradients between two looks at the loss
    tuning: int = 4  # seeds on which learning rates are tuned
    samples: int = 600  # images to train on
    width: int = 64
    timed: int = 64  # gradients of each worker, in part 2


@dataclass(frozen=True)
class Method:
    """make: a new rule; lr: a first guess of its learning rate; paces: where it is measured."""

    name: str
    make: Callable[[], Any]
    workers: int = WORKERS
    lr: float = 0.3
    paces: tuple[str, ...] = PACES


_METHODS = [
    Method("synchronous", Synchronous),
    Method("backup workers, 1", lambda: BackupWorkers(1)),
    Method("backup workers, 2", lambda: BackupWorkers(2)),
    Method("bounded, 0 ahead", lambda: BoundedStaleness(0)),
    Method("bounded, 2 ahead", lambda: BoundedStaleness(2)),
    Method("bounded, 8 ahead", lambda: BoundedStaleness(8)),
    Method("asynchronous", Asynchronous),
    Method("asynchronous, by staleness", lambda: Asynchronous(inverse_staleness), lr=2.7),
    *(
        Method(f"asynchronous, {n} workers", Asynchronous, n, paces=("equal",))
        for n in (1, 2, 4, 16, 32)
    ),
    Method("asynchronous, 32 workers, by staleness", lambda: Asynchronous(inverse_staleness), 32, 9.0, ("equal",)),
]  # fmt: skip
METHODS = {method.name: method for method in _METHODS}


# --- what comes when ---------------------------------------------------------------------------------------------


@dataclass
class Arrival:
    """A worker's gradient is at the server, at this time; `answered` lists the workers that its rule then answered."""

    time: float
    worker: int
    answered: list[int]


class SimulatedServer:
    """A server as a rule sees it (update_rules.Serving), workers 1 to n, and the queue of what they send.

    compute: (worker, its number of gradients so far) -> seconds of the next
    network: the cluster's; rank 0 is the server. None: messages take no time
    nbytes:  of the model
    """

    def __init__(
        self,
        rule: Any,
        workers: int,
        compute: Callable[[int, int], float],
        network: EmulatedNetwork | None = None,
        nbytes: int = 0,
    ) -> None:
        rule.check(workers)
        self.rule, self.num_workers, self.compute, self.nbytes = rule, workers, compute, nbytes
        self.version, self.num_dropped = 0, 0
        everyone = range(1, workers + 1)
        self.active: Collection[int] = set(everyone)
        self.num_pushed, self.pulled = dict.fromkeys(everyone, 0), dict.fromkeys(everyone, 0)
        self.staleness: list[int] = []
        self.ports = network and [Ports(network, rank) for rank in range(workers + 1)]
        self.now = 0.0
        self._queue: list[tuple[float, int]] = []
        self._answered: list[int] = []
        for worker in everyone:
            self._begin(worker, 0.0)

    def arrivals(self) -> Iterator[Arrival]:
        """Without end; training happens between one and the next, in `applied` and `pulls`."""
        while self._queue:
            self.now, worker = heapq.heappop(self._queue)
            self.num_pushed[worker] += 1
            self._answered = []
            self.came(worker)
            self.rule.received(self, worker)
            yield Arrival(self.now, worker, self._answered)

    def _begin(self, worker: int, at: float) -> None:
        """The worker has the parameters at this time, computes, and its gradient is on its way."""
        done = at + self.compute(worker, self.num_pushed[worker])
        if self.ports:
            self._message(HEADER, worker, 0, done)
            done = self._message(self.nbytes, worker, 0, done)
        heapq.heappush(self._queue, (done, worker))

    def _message(self, nbytes: int, src: int, dst: int, at: float) -> float:
        """When it is there."""
        assert self.ports
        _, head = self.ports[src].send(nbytes, dst, at)
        return self.ports[dst].receive(nbytes, src, head)

    # what the rule calls

    def apply(self, workers: Collection[int], weight: float, lr_factor: float = 1.0) -> None:
        """An update of these workers' gradients."""
        self.staleness += [self.version - self.pulled[w] for w in workers]
        self.version += 1
        self.applied(workers, weight, lr_factor)

    def drop(self, worker: int) -> None:
        """The worker's gradient came too late."""
        self.num_dropped += 1

    def answer(self, workers: Collection[int]) -> None:
        """They get the parameters as they are."""
        for worker in workers:
            self.pulled[worker] = self.version
            self._answered.append(worker)
            self.pulls(worker)
            at = self._message(self.nbytes, 0, worker, self.now) if self.ports else self.now
            self._begin(worker, at)

    # what training does

    def came(self, worker: int) -> None:
        """The worker's gradient is there."""

    def applied(self, workers: Collection[int], weight: float, lr_factor: float) -> None:
        """Their sum, times weight, is the gradient of a step."""

    def pulls(self, worker: int) -> None:
        """The worker takes the parameters as they are."""


class Training(SimulatedServer):
    """Plain SGD at the server, a lane for each learning rate: X (K, N), and what each worker has."""

    def __init__(
        self, method: Method, settings: Settings, seed: int, compute: Callable[[int, int], float],
        rates: Sequence[float], dtype: torch.dtype = torch.float32,
    ) -> None:  # fmt: skip
        self.model = Replicas((64, settings.width, settings.width, 10))
        self.digits = Digits.drawn(settings.samples, seed, dtype)
        # An asynchronous gradient counts 1/WORKERS; its rule gives it 1/workers.
        self.lr = torch.tensor(rates, dtype=dtype).view(-1, 1) * method.workers / WORKERS
        self.X = self.model.start(seed, dtype).expand(len(self.lr), -1)
        self.has = dict.fromkeys(range(1, method.workers + 1), self.X)
        self.gradients: dict[int, torch.Tensor] = {}
        self.counts: Counter[int] = Counter()
        own = self.digits.pools(1, by_class=False).expand(method.workers, -1)
        batches = self.digits.batches(own, settings.batch, seed + 1)
        self._batches, self._drawn = batches, list[torch.Tensor]()
        super().__init__(method.make(), method.workers, compute)

    def batch(self, worker: int, step: int) -> torch.Tensor:
        """The samples of a worker's gradient number `step`."""
        while len(self._drawn) <= step:
            self._drawn.append(next(self._batches))
        return self._drawn[step][worker - 1]

    def came(self, worker: int) -> None:
        chosen = self.batch(worker, self.num_pushed[worker] - 1).expand(len(self.X), -1)
        x, y = self.digits.x[chosen], self.digits.y[chosen]
        self.gradients[worker], _ = self.model.gradients(self.has[worker], x, y)

    def applied(self, workers: Collection[int], weight: float, lr_factor: float) -> None:
        total = torch.stack([self.gradients[w] for w in workers]).sum(0)
        self.X = self.X - self.lr * lr_factor * weight * total
        self.counts.update(workers)

    def pulls(self, worker: int) -> None:
        self.has[worker] = self.X

    def held_out(self) -> list[float]:
        """The loss on images held out, by learning rate."""
        return self.model.losses_on(self.X, self.digits.x_rest, self.digits.y_rest).tolist()


def paced(pace: str, workers: int, seed: int, unit: float = 1.0) -> Callable[[int, int], float]:
    """How long each gradient of each worker takes."""
    generator = torch.Generator().manual_seed(10_000 + seed)
    drawn: list[list[float]] = []

    def compute(worker: int, step: int) -> float:
        while len(drawn) <= step:
            chance = torch.empty(workers, dtype=torch.float64).exponential_(generator=generator)
            drawn.append((1 + 0.2 * chance).tolist())
        slow = 1.0
        if pace == "one slow" and worker == 1:
            slow = 4.0
        if pace == "unequal":
            slow = 8 ** ((worker - 1) / (workers - 1))
        return unit * slow * drawn[step][worker - 1]

    return compute


# --- measuring ---------------------------------------------------------------------------------------------------


def tuned(name: str, settings: Settings, pace: str) -> dict[str, Any]:
    """The learning rate of a method, on seeds that no result is taken from."""
    start, method = time.process_time(), METHODS[name]

    def ends(rates: list[float]) -> list[list[float]]:
        found = []
        for seed in range(TUNING, TUNING + settings.tuning):
            server = Training(method, settings, seed, paced(pace, method.workers, seed), rates)
            next(islice(server.arrivals(), settings.gradients - 1, None))
            found.append(server.held_out())
        return found

    best, tried = curves.tuned_lr(ends, method.lr, 3**0.5)
    return {
        "ends": {str(lr): _rounded(losses) for lr, losses in tried.items()},
        "best": best,
        "seconds": round(time.process_time() - start, 2),
    }


def measured(
    name: str, settings: Settings, seed: int, pace: str, best: Callable[[], float]
) -> dict[str, Any]:
    """One method and seed, at the rate that was tuned and at the common one."""
    start, method = time.process_time(), METHODS[name]
    rates = sorted({best(), COMMON})
    server = Training(method, settings, seed, paced(pace, method.workers, seed), rates)
    looks, times, updates = [server.held_out()], [0.0], [0]
    for number, arrival in enumerate(islice(server.arrivals(), settings.gradients), 1):
        if number % settings.every == 0:
            looks.append(server.held_out())
            times.append(round(arrival.time, 4))
            updates.append(server.version)
    applied = sum(server.counts.values())
    return {
        "losses": {str(rate): _rounded([one[k] for one in looks]) for k, rate in enumerate(rates)},
        "times": times,
        "updates": updates,
        "staleness": {str(s): n for s, n in sorted(Counter(server.staleness).items())},
        "slow": round(server.counts[1] / applied, 5),
        "dropped": server.num_dropped,
        "seconds": round(time.process_time() - start, 2),
    }


def _rounded(values: list[float]) -> list[float | None]:
    return [round(value, 5) if math.isfinite(value) else None for value in values]


def timed(
    model: str, gigabits: int, pace: str, names: list[str], settings: Settings
) -> dict[str, Any]:
    """Seconds per eight applied gradients, by method."""
    start, work = time.process_time(), WORKLOADS[model]
    network = EmulatedNetwork(LATENCY, gigabits * 1e9 / 8)
    found = {}
    for name in names:
        compute = paced(pace, WORKERS, 0, work.seconds)
        server = SimulatedServer(METHODS[name].make(), WORKERS, compute, network, 4 * work.parameters)  # fmt: skip
        for number, _ in enumerate(server.arrivals(), 1):
            if number == settings.timed * WORKERS:
                break
        found[name] = float(f"{server.now / len(server.staleness) * WORKERS:.5g}")
    return {
        "compute": float(f"{work.seconds:.5g}"),
        "step": found,
        "seconds": round(time.process_time() - start, 2),
    }


def jobs(
    settings: Settings, seeds: int, names: list[str], runs: dict[str, Any]
) -> Iterator[results_file.Job]:
    """Everything, in order: learning rates, all methods seed by seed, then seconds."""
    for name in names:
        for pace in METHODS[name].paces:
            yield key("tuned", pace, name), partial(tuned, name, settings, pace)
    for seed in range(seeds):
        for name in names:
            for pace in METHODS[name].paces:
                best = partial(lambda where: runs[where]["best"], key("tuned", pace, name))
                run = partial(measured, name, settings, seed, pace, best)
                yield key("gradients", pace, name, seed), run
    of_eight = [name for name in names if METHODS[name].workers == WORKERS]
    for model in WORKLOADS:
        for gigabits in LINKS:
            for pace in PACES:
                run = partial(timed, model, gigabits, pace, of_eight, settings)
                yield key("seconds", model, gigabits, pace), run


def load(path: Path, settings: Settings) -> dict[str, Any]:
    """The results so far. ValueError where the file was made with other settings."""
    what = (__doc__ or "").split("\n", 1)[0]
    return results_file.load(path, what, format=FORMAT, settings=asdict(settings))


def study(
    path: Path, settings: Settings, seeds: int, budget: float | None = None, *,
    names: list[str] | None = None,
) -> bool:  # fmt: skip
    """Runs what is missing in the file at `path`; True if nothing is missing any more."""
    torch.set_num_threads(1)
    names = names or list(METHODS)
    results = load(path, settings) | {"methods": {n: list(METHODS[n].paces) for n in names}}
    return results_file.run_missing(
        results, path, jobs(settings, seeds, names, results["runs"]), seeds, budget
    )


def of(results: dict[str, Any], pace: str, method: str) -> tuple[list[dict[str, Any]], str]:
    """A method's runs, by seed, and the learning rate that was tuned for it."""
    runs = results["runs"]
    by_seed = [runs[key("gradients", pace, method, seed)] for seed in range(results["seeds"])]
    return by_seed, str(runs[key("tuned", pace, method)]["best"])


def summary(results: dict[str, Any]) -> Iterator[str]:
    """A line per pace and method: its learning rate, its loss at the end and when that is, and the staleness."""
    for pace in PACES:
        base: list[float] = []
        for name, paces in results["methods"].items():
            if pace not in paces:
                continue
            runs, lr = of(results, pace, name)
            ends = curves.at_end([run["losses"] for run in runs], lr)
            base = base or ends
            low, high = curves.paired_interval(ends, base)
            stale = Counter[int]()
            for run in runs:
                stale.update({int(s): n for s, n in run["staleness"].items()})
            yield (
                f"{pace:9s}{name:40s} lr {lr:<5s} loss {statistics.median(ends):.4f} ({low:+.4f} to {high:+.4f})"
                f"  at {statistics.mean(run['times'][-1] for run in runs):6.1f}"
                f"  stale {sum(s * n for s, n in stale.items()) / stale.total():5.2f}, at most {max(stale)}"
                f"  slow {statistics.mean(run['slow'] for run in runs):.3f}"
            )


def main(arguments: list[str] | None = None) -> None:
    """Measures, and prints a line per method."""
    results_file.command(arguments, __doc__, RESULTS, Settings(), study, load, summary)


if __name__ == "__main__":
    main()
