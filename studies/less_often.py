"""Methods that meet less often, measured: the loss that steps of each reach on handwritten digits,
and what a step takes.

    python studies/less_often.py                    # until all is measured; writes studies/results/less_often.json
    python studies/less_often.py --budget 100       # stop after 100 s; call again to go on where it stopped

1. Steps. Eight replicas of an MLP in one process, each with its batches and its own optimizer's state: what eight ranks
   of dtcourse.asynchronous compute (a test compares all methods with real ranks over 20 steps). Two ways to deal the
   images to the ranks: "shuffled", and "by class", where images are sorted by their digit first, so that a rank has
   two or three of the ten digits. Seeds draw weights, images and batches, and all methods of a seed share them.

   A method's learning rate is tuned on seeds of their own, for each deal, over learning rates in steps of 2: see
   curves.tuned_lr, which goes on until the best lies inside.

   runs["tuned | DEAL | METHOD"] =
       ends     {rate: [loss on images held out at the last step, by tuning seed]}; None where it is no number
       best     the rate that was chosen

   With it, and with one that all methods of an optimizer have in common (COMMON), each is then run on other seeds:

   runs["steps | DEAL | METHOD | SEED"] =
       losses   {rate: [loss on images held out, every so many steps]} of the model that one would keep: the mean of all
                replicas, or EASGD's center; None from where it is no number any more
       own      the same of the replicas' own models: the mean of their eight losses, at the last step
       apart    {rate: sqrt of the mean squared distance of the replicas from their mean, at the last step}
       meetings {rate: [how often all replicas have met, at each look]}

   Rivals are run as their papers run them: post-local SGD begins to skip where the learning rate first decays, AdaComm
   chooses anew after so much time and not so many steps, DiLoCo has the paper's outer settings and three others.

2. Seconds. Steps of each method on an emulated cluster of eight ranks (the virtual clock: the same seconds on every
   machine), with a stand-in for ResNet-50 (dtcourse/course/stand_in.py), on four links. In "equal" all
   ranks compute as fast, in "one slow" rank 0 takes twice as long in each step, in "by chance" each step of each rank
   takes 1 + an exponential of mean 0.3 times as long, another draw for each.

   runs["seconds | MODEL | GBIT/S | PACE"] = {compute: seconds of a step's computing where nobody is slow,
       step: {METHOD: seconds per step of the slowest rank, mean over a period, and over Settings.timed steps "by
       chance"}}

Methods with one pattern of messages have one name there (PATTERN): momentum costs no bytes unless it is averaged, and
EASGD sends what local SGD sends. Post-local SGD is the mean of its two halves; AdaComm's periods come from the loss,
and its meetings are counted in 1. Seconds to a target are steps times seconds per step. The file holds every run
with settings, machine, date and versions. It is written after each run, and a run that is in it is not repeated.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dtcourse import emulation, launch
from dtcourse.asynchronous import DiLoCo, GossipSGD, LocalSGD, mixing
from dtcourse.course import curves, results_file
from dtcourse.course.replicas import Digits, Replicas
from dtcourse.course.results_file import key
from dtcourse.course.stand_in import A100, LATENCY, LAYERS, LINKS, WORKLOADS, StandIn
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork

RESULTS = Path(__file__).parent / "results" / "less_often.json"
FORMAT = 2
COMMON = {"SGD": 0.3, "momentum": 0.03, "AdamW": 0.001}
TUNING = 1000  # the first of the seeds on which learning rates are tuned
DEALS = ("shuffled", "by class")
MODELS = ("ResNet-50",)  # of stand_in.WORKLOADS
PACES = {"equal": LINKS, "one slow": (10,), "by chance": (10,)}  # and their links


@dataclass(frozen=True)
class Settings:
    """What the numbers depend on; a results file is continued only with the same ones (seeds may grow)."""

    ranks: int = 8
    batch: int = 8  # of each rank
    steps: int = 2560
    every: int = 40  # steps between two looks at the loss
    tuning: int = 4  # seeds on which learning rates are tuned
    samples: int = 600  # images to train on, all ranks together
    width: int = 64
    averaging: float = (
        12.4  # what one meeting costs AdaComm, in steps: ResNet-50's at 10 Gbit/s, of part 2
    )
    scale: int = 1024  # of part 2
    timed: int = 64  # steps, in part 2


# --- 1. steps: the papers' algorithms on a stack of replicas ------------------------------------------------------
#
# X and G are (K, p, N): a lane for each learning rate, p replicas, N numbers. lr is (K, 1, 1).


def mean(X: torch.Tensor) -> torch.Tensor:
    """The mean of a lane's replicas, for each of them."""
    return X.mean(1, keepdim=True).expand_as(X)


@dataclass
class Local:
    """Local SGD; with synchronous steps first, post-local SGD. Stich 1805.09767; Lin et al. 1808.07217."""

    period: float
    synchronous: int = 0
    momentum: float = 0.0
    average_momentum: bool = False
    meetings: Any = 0
    steps: int = 0
    velocity: Any = 0.0

    def step(self, X: torch.Tensor, G: torch.Tensor, lr: torch.Tensor, _: torch.Tensor) -> Any:
        is_synchronous = self.steps < self.synchronous
        self.velocity = self.momentum * self.velocity + (mean(G) if is_synchronous else G)
        X = X - lr * self.velocity
        self.steps += 1
        if is_synchronous:
            self.meetings += 1
        elif (self.steps - self.synchronous) % self.period == 0:
            X, self.meetings = mean(X), self.meetings + 1
            self.velocity = mean(self.velocity) if self.average_momentum else self.velocity
        return X

    def kept(self, X: torch.Tensor) -> torch.Tensor:
        """(K, N): the model that one would keep."""
        return X.mean(1)


@dataclass
class Adaptive(Local):
    """AdaComm: a period for each lane, from its loss. Wang and Joshi 1810.08313, section 4.

    interval:  time between two choices, in steps; a meeting takes `averaging` of them
    """

    interval: float = 40
    averaging: float = 0.0
    since: Any = None
    periods: list[int] = field(default_factory=list)

    def step(self, X: torch.Tensor, G: torch.Tensor, lr: torch.Tensor, losses: torch.Tensor) -> Any:
        lanes = range(len(X))
        now = losses.mean(1).tolist()
        if self.steps == 0:
            self.first, self.periods = now, [int(self.period)] * len(X)
            self.since, self.seen = [0] * len(X), [list[float]() for _ in lanes]
            self.due, self.meetings = [self.interval] * len(X), [0] * len(X)
        X = X - lr * G
        self.steps += 1
        for k in lanes:
            self.since[k] += 1
            self.seen[k].append(now[k])
            if self.since[k] < self.periods[k]:
                continue
            X[k] = X[k].mean(0)
            self.meetings[k] += 1
            time_now = self.steps + self.averaging * self.meetings[k]
            if time_now >= self.due[k]:
                self.periods[k] = self._chosen(k)
                self.due[k] = time_now + self.interval
            self.since[k], self.seen[k] = 0, []
        return X

    def _chosen(self, k: int) -> int:
        ratio = statistics.mean(self.seen[k]) / self.first[k]
        before = self.periods[k]
        wanted = math.ceil(math.sqrt(ratio) * self.period) if math.isfinite(ratio) else before
        return max(1, wanted if wanted < before else before // 2)


@dataclass
class Elastic(Local):
    """EASGD. Zhang et al. 1412.6651, equations 5 and 6."""

    beta: float = 0.9
    center: Any = None

    def step(self, X: torch.Tensor, G: torch.Tensor, lr: torch.Tensor, _: torch.Tensor) -> Any:
        center = X.mean(1, keepdim=True) if self.center is None else self.center
        Y = X - lr * G
        if self.steps and self.steps % self.period == 0:
            Y = Y - self.beta / X.shape[1] * (X - center)
            center = (1 - self.beta) * center + self.beta * X.mean(1, keepdim=True)
            self.meetings += 1
        self.center, self.steps = center, self.steps + 1
        return Y

    def kept(self, X: torch.Tensor) -> torch.Tensor:
        return X.mean(1) if self.center is None else self.center[:, 0]


@dataclass
class Gossip(Local):
    """D-PSGD on a graph. Lian et al. 1705.09056, algorithm 1."""

    period: float = math.inf
    graph: Callable[[int], Any] = mixing.ring

    def step(self, X: torch.Tensor, G: torch.Tensor, lr: torch.Tensor, _: torch.Tensor) -> Any:
        matrices = mixing.rounds(self.graph(X.shape[1]))
        W = matrices[self.steps % len(matrices)].to(X.dtype)
        self.steps += 1
        return W @ X - lr * G


@dataclass
class Outer(Local):
    """DiLoCo: AdamW within, Nesterov without. Douillard et al. 2311.08105, algorithm 1.

    With an outer learning rate of 1 and no momentum, local AdamW; with period 1 besides, each rank's AdamW on its own
    gradient.
    """

    outer_lr: float = 0.7
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    decay: float = 0.01
    average_gradients: bool = False

    def step(self, X: torch.Tensor, G: torch.Tensor, lr: torch.Tensor, _: torch.Tensor) -> Any:
        if self.steps == 0:
            self.x, self.m, self.v = X.mean(1, keepdim=True), torch.zeros_like(X), torch.zeros_like(X)  # fmt: skip
        G = mean(G) if self.average_gradients else G
        (b1, b2), t = self.betas, self.steps + 1
        self.m, self.v = b1 * self.m + (1 - b1) * G, b2 * self.v + (1 - b2) * G * G
        X = X - lr * self.decay * X
        X = X - lr * (self.m / (1 - b1**t)) / ((self.v / (1 - b2**t)).sqrt() + 1e-8)
        self.steps = t
        if t % self.period == 0:
            delta = self.x - X.mean(1, keepdim=True)
            self.velocity = self.momentum * self.velocity + delta
            self.x = self.x - self.outer_lr * (delta + self.momentum * self.velocity)
            X, self.meetings = self.x.expand_as(X).clone(), self.meetings + 1
        return X


@dataclass(frozen=True)
class Method:
    """A method of the study.

    make:    settings -> a new Local or another
    lr:      a first guess of its learning rate
    family:  whose common learning rate it is run at, too
    pattern: whose seconds are its own
    decays:  whether the learning rate falls to a tenth after half of the steps and to a hundredth after three quarters
    """

    name: str
    make: Callable[[Settings], Local]
    lr: float = 0.3
    family: str = "SGD"
    pattern: str | None = None
    decays: bool = False

    def factor(self, step: int, settings: Settings) -> float:
        """Of the learning rate, in this step."""
        passed = sum(step >= settings.steps * share for share in (0.5, 0.75))
        return 0.1**passed if self.decays else 1.0


def plain(period: float, name: str = "") -> Method:
    """Local SGD without momentum."""
    return Method(name or f"local, H = {period}", lambda _: Local(period))


def adamw(name: str, period: int, *outer: float, pattern: str | None = None, **more: Any) -> Method:
    """AdamW within; outer: learning rate and momentum without."""
    outer_lr, momentum = outer or (1.0, 0.0)
    make = lambda _: Outer(period, outer_lr=outer_lr, momentum=momentum, **more)  # noqa: E731
    return Method(name, make, 0.001, "AdamW", pattern)


OUTER = {
    16: ((0.7, 0.9), (0.3, 0.9), (0.7, 0.5), (1.0, 0.3)),
    64: ((0.7, 0.9), (0.7, 0.5), (1.0, 0.3)),
}
_METHODS = [
    plain(1, "synchronous"),
    *(plain(period) for period in (4, 16, 64)),
    plain(math.inf, "never"),
    Method("synchronous, decayed", lambda _: Local(1), pattern="synchronous", decays=True),
    Method("local, H = 16, decayed", lambda _: Local(16), pattern="local, H = 16", decays=True),
    Method(
        "post-local, H = 16, decayed", lambda s: Local(16, synchronous=s.steps // 2), decays=True
    ),
    Method("AdaComm, from H = 32", lambda s: Adaptive(32, interval=s.steps // 8, averaging=s.averaging)),
    Method("EASGD, H = 4", lambda _: Elastic(4), pattern="local, H = 4"),
    Method("EASGD, H = 16", lambda _: Elastic(16), pattern="local, H = 16"),
    Method("gossip, ring", lambda _: Gossip(graph=mixing.ring)),
    Method("gossip, exponential", lambda _: Gossip(graph=mixing.exponential)),
    Method("gossip, one peer", lambda _: Gossip(graph=mixing.one_peer_exponential)),
    Method("synchronous, momentum", lambda _: Local(1, momentum=0.9), 0.03, "momentum", "synchronous"),
    Method(
        "local, H = 16, momentum", lambda _: Local(16, momentum=0.9), 0.03, "momentum", "local, H = 16"
    ),
    Method(
        "local, H = 16, momentum averaged", lambda _: Local(16, momentum=0.9, average_momentum=True),
        0.03, "momentum",
    ),
    adamw("synchronous, AdamW", 1, pattern="synchronous", average_gradients=True),
    adamw("local AdamW, H = 16", 16, pattern="local, H = 16"),
    adamw("local AdamW, H = 64", 64, pattern="local, H = 64"),
    *(
        adamw(
            f"DiLoCo, H = {period}, outer {lr} {momentum}", period, lr, momentum,
            pattern=None if (lr, momentum) == OUTER[period][0] else f"DiLoCo, H = {period}, outer 0.7 0.9",
        )
        for period, outer in OUTER.items()
        for lr, momentum in outer
    ),
]  # fmt: skip
METHODS = {method.name: method for method in _METHODS}
PATTERN = {method.name: method.pattern or method.name for method in _METHODS}


def lanes(
    method: Method,
    settings: Settings,
    seed: int,
    deal: str,
    rates: Sequence[float],
    dtype: torch.dtype = torch.float32,
) -> Iterator[tuple[Local, torch.Tensor]]:
    """The method and X (K, p, N), before the first step and after each; a lane for each learning rate."""
    p, model = settings.ranks, Replicas((64, settings.width, settings.width, 10))
    digits = Digits.drawn(settings.samples, seed, dtype)
    batches = digits.batches(digits.pools(p, deal == "by class"), settings.batch, seed + 1)
    lr = torch.tensor(rates, dtype=dtype).view(-1, 1, 1)
    X = model.start(seed, dtype).expand(len(lr), p, -1)
    rule = method.make(settings)
    yield rule, X
    for step, chosen in enumerate(batches):
        every = chosen.repeat(len(lr), 1)
        G, losses = model.gradients(X.flatten(0, 1), digits.x[every], digits.y[every])
        now = lr * method.factor(step, settings)
        X = rule.step(X, G.view_as(X), now, losses.view(X.shape[:2]))
        yield rule, X


def tuned(name: str, settings: Settings, deal: str) -> dict[str, Any]:
    """The learning rate of a method, on seeds that no result is taken from."""
    start, method = time.process_time(), METHODS[name]

    def ends(rates: list[float]) -> list[list[float]]:
        return [_end(method, settings, TUNING + n, deal, rates) for n in range(settings.tuning)]

    best, tried = curves.tuned_lr(ends, method.lr)
    return {
        "ends": {str(lr): rounded(losses) for lr, losses in tried.items()},
        "best": best,
        "seconds": round(time.process_time() - start, 2),
    }


def _end(
    method: Method, settings: Settings, seed: int, deal: str, rates: Sequence[float]
) -> list[float]:
    """The loss at the last step, by learning rate."""
    model = Replicas((64, settings.width, settings.width, 10))
    digits = Digits.drawn(settings.samples, seed)
    rule, X = next(islice(lanes(method, settings, seed, deal, rates), settings.steps, None))
    return model.losses_on(rule.kept(X), digits.x_rest, digits.y_rest).tolist()


def measured(
    name: str, settings: Settings, seed: int, deal: str, best: Callable[[], float]
) -> dict[str, Any]:
    """One method and seed, at the rate that was tuned and at its family's common one."""
    start, method = time.process_time(), METHODS[name]
    model = Replicas((64, settings.width, settings.width, 10))
    digits = Digits.drawn(settings.samples, seed)
    rates = sorted({best(), COMMON[method.family]})
    names = [str(rate) for rate in rates]
    looks: list[list[float]] = []
    meetings: list[list[int]] = []
    steps = islice(lanes(method, settings, seed, deal, rates), settings.steps + 1)
    for step, (rule, X) in enumerate(steps):
        if step % settings.every == 0:
            looks.append(model.losses_on(rule.kept(X), digits.x_rest, digits.y_rest).tolist())
            met = rule.meetings
            meetings.append(list(met) if isinstance(met, list) else [met] * len(rates))
    own = model.losses_on(X.flatten(0, 1), digits.x_rest, digits.y_rest).view(X.shape[:2]).mean(1)
    apart = (X - mean(X)).square().sum(2).mean(1).sqrt()
    return {
        "losses": {name: rounded([look[k] for look in looks]) for k, name in enumerate(names)},
        "own": dict(zip(names, rounded(own.tolist()), strict=True)),
        "apart": dict(zip(names, rounded(apart.tolist()), strict=True)),
        "meetings": {name: [look[k] for look in meetings] for k, name in enumerate(names)},
        "seconds": round(time.process_time() - start, 2),
    }


def rounded(values: list[float]) -> list[float | None]:
    """With five digits after the point; None for what is no number."""
    return [round(value, 5) if math.isfinite(value) else None for value in values]


# --- 2. seconds --------------------------------------------------------------------------------------------------


def slower(pace: str, ranks: int, steps: int) -> torch.Tensor:
    """(steps, ranks): the factor of each step's computing on each rank."""
    factors = torch.ones(steps, ranks)
    if pace == "one slow":
        factors[:, 0] = 2.0
    if pace == "by chance":
        chance = torch.empty(steps, ranks).exponential_(generator=torch.Generator().manual_seed(0))
        factors += 0.3 * chance
    return factors


def wrapped(name: str, model: StandIn, settings: Settings) -> tuple[Any, torch.optim.Optimizer]:
    """The model and the optimizer of a method: plain SGD everywhere but in DiLoCo."""
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    if name == "synchronous":
        return DistributedDataParallel(model, bucket_cap_mb=25 / settings.scale), sgd
    rule = METHODS[name].make(settings)
    if isinstance(rule, Gossip):
        return model, GossipSGD(model, sgd, rule.graph(dist.get_world_size()), init_sync=False)
    if isinstance(rule, Outer):
        adamw = torch.optim.AdamW(model.parameters(), lr=0.1)
        return model, DiLoCo(model, adamw, int(rule.period), init_sync=False)
    if rule.average_momentum:
        sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=rule.momentum)
    with_state = rule.average_momentum
    return model, LocalSGD(model, sgd, int(rule.period), average_state=with_state, init_sync=False)


NOT_TIMED = ("never", "post-local", "AdaComm")
TIMED = [m.name for m in _METHODS if m.pattern is None and not m.name.startswith(NOT_TIMED)]


def steps_timed(
    model_name: str, names: list[str], pace: str, settings: Settings
) -> dict[str, float]:
    """On each rank: seconds per step by method, from forward's start to the optimizer's end."""
    found = {}
    factors = slower(pace, dist.get_world_size(), settings.timed)[:, dist.get_rank()].tolist()
    for name in names:
        ddp = name == "synchronous"
        # nothing is sent while backward runs, but all of it in gossip
        layers = LAYERS if ddp else 1
        stand_in = StandIn(WORKLOADS[model_name], settings.scale, layers)
        model, optimizer = wrapped(name, stand_in, settings)

        def step(factor: float) -> None:
            stand_in.slower = factor  # noqa: B023
            optimizer.zero_grad()  # noqa: B023
            model(torch.ones(1)).sum().backward()  # noqa: B023
            optimizer.step()  # noqa: B023

        for _ in range(2 if ddp else 0):  # its buckets are settled after two steps
            step(1.0)
        number = settings.timed if pace == "by chance" else period_of(name, settings)
        dist.barrier()
        start = emulation.now()
        for factor in factors[:number]:
            step(factor)
        found[name] = (emulation.now() - start) / number
        dist.barrier()
    return found


def period_of(name: str, settings: Settings) -> int:
    """Steps after which all comes again; six, which the three rounds of one peer each divide,
    where there is no period.
    """
    period = METHODS[name].make(settings).period
    return int(period) if 1 < period < math.inf else 6


def timed(
    model: str, gigabits: int, pace: str, names: list[str], settings: Settings
) -> dict[str, Any]:
    """A model's seconds per step on a link: the slowest rank's, by method."""
    start, scale = time.perf_counter(), settings.scale
    run = launch(
        steps_timed, settings.ranks, model, names, pace, settings,
        backend="ring", devices=EmulatedDevice(A100.flops / scale, A100.bandwidth / scale),
        network=EmulatedNetwork(LATENCY, gigabits * 1e9 / 8 / scale), clock="virtual", timeout=None,
    )  # fmt: skip
    return {
        "compute": float(f"{WORKLOADS[model].seconds:.5g}"),
        "step": {each: float(f"{max(one[each] for one in run):.5g}") for each in names},
        "seconds": round(time.perf_counter() - start, 2),
    }


# --- the file, and what it says ----------------------------------------------------------------------------------


def jobs(
    settings: Settings,
    seeds: int,
    names: list[str],
    models: list[str],
    links: list[int],
    runs: dict[str, Any],
) -> Iterator[results_file.Job]:
    """Everything, in order: learning rates, all methods seed by seed, then seconds."""
    for name in names:
        for deal in DEALS:
            yield key("tuned", deal, name), partial(tuned, name, settings, deal)
    for seed in range(seeds):
        for deal in DEALS:
            for name in names:
                best = partial(lambda where: runs[where]["best"], key("tuned", deal, name))
                run = partial(measured, name, settings, seed, deal, best)
                yield key("steps", deal, name, seed), run
    timed_names = [name for name in TIMED if name in names]
    for model in models:
        for gigabits in links:
            for pace in (pace for pace, at in PACES.items() if gigabits in at):
                work = partial(timed, model, gigabits, pace, timed_names, settings)
                yield key("seconds", model, gigabits, pace), work


def load(path: Path, settings: Settings) -> dict[str, Any]:
    """The results so far. ValueError where the file was made with other settings."""
    what = (__doc__ or "").split("\n", 1)[0]
    return results_file.load(path, what, format=FORMAT, settings=asdict(settings))


def study(
    path: Path, settings: Settings, seeds: int, budget: float | None = None, *,
    names: list[str] | None = None, models: list[str] | None = None, links: list[int] | None = None,
) -> bool:  # fmt: skip
    """Runs what is missing in the file at `path`; True if nothing is missing any more."""
    torch.set_num_threads(1)
    parts = names or list(METHODS), models or list(MODELS), links or list(LINKS)
    results = load(path, settings)
    results |= dict(zip(("methods", "models", "links"), parts, strict=True))
    todo = jobs(settings, seeds, *parts, results["runs"])
    return results_file.run_missing(results, path, todo, seeds, budget)


def of(results: dict[str, Any], deal: str, method: str) -> tuple[list[dict[str, Any]], str]:
    """A method's runs, by seed, and the learning rate that was tuned for it."""
    runs = results["runs"]
    by_seed = [runs[key("steps", deal, method, seed)] for seed in range(results["seeds"])]
    return by_seed, str(runs[key("tuned", deal, method)]["best"])


def summary(results: dict[str, Any]) -> Iterator[str]:
    """A line per deal and method: its lr, its loss at the end, the difference from the first of its family by seed."""
    for deal in DEALS:
        bases: dict[str, list[float]] = {}
        for name in results["methods"]:
            family = METHODS[name].family
            runs, best = of(results, deal, name)
            for lr in dict.fromkeys([best, str(COMMON[family])]):
                ends = curves.at_end([run["losses"] for run in runs], lr)
                base = bases.setdefault(f"{family} {lr == best}", ends)
                low, high = curves.paired_interval(ends, base)
                own, apart = (
                    statistics.median(run[part][lr] for run in runs) for part in ("own", "apart")
                )
                met = statistics.median(run["meetings"][lr][-1] for run in runs)
                yield (
                    f"{deal:9s} {name:33s} lr {lr:<7s} loss {statistics.median(ends):.4f} ({low:+.4f} to {high:+.4f})"
                    f"  own {own:.4f}  apart {apart:.3f}  met {met:g}{'' if lr == best else '  common lr'}"
                )


def main(arguments: list[str] | None = None) -> None:
    """Measures, and prints a line per method."""
    results_file.command(arguments, __doc__, RESULTS, Settings(), study, load, summary)


if __name__ == "__main__":
    main()
