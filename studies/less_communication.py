"""Methods that talk less, measured: what a step of each is worth, on handwritten digits,
and what it takes on a given link.

    python studies/less_communication.py                    # until all is measured; writes studies/results/...json
    python studies/less_communication.py --budget 100       # stop after 100 s; call again to go on where it stopped

1. Steps. Four replicas of an MLP in one process average their gradients as four ranks of dtcourse.compression do: the
   package's own compressors, rank by rank (dtcourse/course/compressed_replicas.py; tests compare with real ranks).
   Seeds draw weights, images and their order, and all methods of a seed share them, so differences are taken within
   a seed.

   What differs between methods is also where momentum stands (PLACE): after the mean, as SGD's own; before the
   compression, on each rank; or there is none. Rivals are run as their papers run them: majority vote without momentum
   and, as Signum, with each rank's momentum before its vote (1802.04434, 1810.05291); signs with feedback without
   momentum (1901.09847) and with momentum before them (1905.10936); PowerSGD with feedback and momentum after
   (1905.13727); DGC with momentum correction; 1-bit Adam with a fifth of the steps as warm-up. Beside them the same
   bits with momentum elsewhere.

   A learning rate is tuned on seeds of its own, in steps of 2, until the best lies inside (curves.tuned_lr):

   runs["tuned | METHOD"] = {ends: {rate: [loss on images held out at the last step, by tuning seed]}; None where it is
       no number, best: the rate that was chosen}

   With it, and with the one that all methods of a family have in common (COMMON), each is then run on other seeds:

   runs["steps | METHOD | SEED"] = {losses: {rate: [loss on images held out, every so many steps]}}; None from where it
       is no number any more

2. Seconds. One step of each method on an emulated cluster of eight ranks (the virtual clock: the same seconds on every
   machine), for two models and four links. Compressing really runs, and takes the bytes and operations that it takes
   there. The model is a stand-in with as many numbers per rank and as many operations as the one it stands for, both
   1/scale of the real, on a device and links of 1/scale of the real speed: the ratios of bytes and operations are kept,
   but for PowerSGD, whose factors are a larger part of a smaller matrix: its real messages are shorter. The device is
   an A100's 312 teraflops and 2 terabytes a second (shared/published/hw_specs.json), of which a model reaches a share
   that is an assumption, not a measurement (dtcourse/course/stand_in.py).

   runs["seconds | MODEL | GBIT/S"] = {compute: seconds of a step's computing, step: {METHOD: seconds per step}}

Methods that send the same messages have one name there (patterns): where momentum stands costs no bytes. 1-bit Adam is
not timed. Seconds to a target are steps times seconds per step. The file holds every run with settings, machine, date
and versions. It is written after each run, and a run that is in it is not repeated.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtcourse import emulation, launch
from dtcourse.compression import (
    QSGD,
    CompressionState,
    Compressor,
    DeepGradientState,
    Float8,
    HalfPrecision,
    IntegerQuantizer,
    MajorityVote,
    OneBitSGD,
    PowerSGDState,
    RandomK,
    ScaledSign,
    TernGradState,
    TopK,
    compression_hook,
    deep_gradient_hook,
)
from dtcourse.course import curves, results_file
from dtcourse.course.compressed_replicas import Averaged, DeepGradient, LowRank, Ternary, Voted
from dtcourse.course.replicas import Digits, Replicas
from dtcourse.course.results_file import key
from dtcourse.course.stand_in import A100, LATENCY, LINKS, WORKLOADS, StandIn, Workload
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork
from dtcourse.models import MLP

RESULTS = Path(__file__).parent / "results" / "less_communication.json"
FORMAT = 2
TUNING = 1000  # the first of the seeds on which learning rates are tuned
MOMENTUM = 0.9
# By family. Without momentum a learning rate of ten times does what one with a momentum of 0.9 does: 1 / (1 - 0.9).
COMMON = {"after": 0.05, "before": 0.05, "none": 0.5, "votes": 0.002, "Adam": 0.002}
WARM_UP = 0.2  # of 1-bit Adam's steps


@dataclass(frozen=True)
class Settings:
    """What the numbers depend on, `scale` those of part 2;
    a results file is continued only with the same ones (seeds may grow).
    """

    ranks: int = 4
    batch: int = 8  # of each rank
    steps: int = 240
    every: int = 10  # steps between two looks at the loss
    tuning: int = 3  # seeds on which learning rates are tuned
    samples: int = 600  # images to train on
    width: int = 64
    scale: int = 128


# --- the methods -------------------------------------------------------------------------------------------------

Mean = Callable[[torch.Tensor], torch.Tensor]  # of (P, N): (N,)


class Momentum:
    """SGD with the momentum of the mean, of each rank's gradient before the mean is made of them, or none."""

    def __init__(self, mean: Mean, place: str) -> None:
        self.mean, self.place, self.velocity = mean, place, 0.0

    def step(self, x: torch.Tensor, G_PN: torch.Tensor, lr: float) -> torch.Tensor:
        """x (N,) after a step; G_PN: each rank's gradient."""
        if self.place == "before":
            self.velocity = MOMENTUM * self.velocity + G_PN
            return x - lr * self.mean(self.velocity)
        kept = MOMENTUM if self.place == "after" else 0.0
        self.velocity = kept * self.velocity + self.mean(G_PN)
        return x - lr * self.velocity


class OneBitAdam:
    """Adam for so many steps, then each tensor's momentum as scaled signs; the squares stay. Tang et al. 2102.02888."""

    def __init__(self, ranks: int, sizes: Sequence[int], warmup_steps: float) -> None:
        self.means = [Averaged(ScaledSign, ranks, feedback=True) for _ in sizes]
        self.sizes, self.warmup_steps, self.steps = list(sizes), warmup_steps, 0
        self.m: Any = 0.0
        self.v: Any = 0.0

    def step(self, x: torch.Tensor, G_PN: torch.Tensor, lr: float) -> torch.Tensor:
        """x (N,) after a step; G_PN: each rank's gradient."""
        self.steps += 1
        if self.steps <= self.warmup_steps:
            g = G_PN.mean(0)
            self.m, self.v = 0.9 * self.m + 0.1 * g, 0.999 * self.v + 0.001 * g * g
        else:
            own = (0.9 * self.m + 0.1 * G_PN).split(self.sizes, dim=1)
            self.m = torch.cat([mean(part) for mean, part in zip(self.means, own, strict=True)])
        m_hat = self.m / (1 - 0.9**self.steps)
        v_hat = self.v / (1 - 0.999 ** min(self.steps, self.warmup_steps))
        return x - lr * torch.where(self.v > 0, m_hat / (v_hat.sqrt() + 1e-8), 0.0)


@dataclass(frozen=True)
class Method:
    """A method of the study.

    mean:    given ranks and the parameters' shapes, what makes the mean; None: plain
    place:   of momentum: PLACE; "Adam" where the method is an optimizer of its own
    lr:      a first guess of its learning rate
    family:  whose common learning rate it is run at, too; its place's if none is named
    pattern: whose messages it sends, in part 2; None: those of its own hook
    hook:    given the model's optimizer, the state of a hook and the hook; None: plain all-reduce
    """

    name: str
    mean: Callable[[int, Sequence[torch.Size]], Mean] | None = None
    place: str = "after"
    lr: float = 0.1
    family: str | None = None
    pattern: str | None = None
    hook: Callable[[torch.optim.Optimizer], tuple[Any, Any]] | None = None

    def rule(self, settings: Settings, shapes: Sequence[torch.Size]) -> Momentum | OneBitAdam:
        """Its state before the first step."""
        if self.place == "Adam":
            warm_up = WARM_UP * settings.steps if self.name == "1-bit Adam" else math.inf
            return OneBitAdam(settings.ranks, [shape.numel() for shape in shapes], warm_up)
        plain: Mean = lambda X_PN: X_PN.mean(0)  # noqa: E731
        return Momentum(self.mean(settings.ranks, shapes) if self.mean else plain, self.place)

    @property
    def common(self) -> float:
        """The learning rate that its family has in common."""
        return COMMON[self.family or self.place]


def compressed(
    name: str,
    make: Callable[[], Compressor],
    feedback: bool = False,
    place: str = "after",
    lr: float = 0.1,
) -> Method:
    """A compressor. feedback: with error feedback; place: of momentum, named where it is not SGD's own."""
    suffix = {"after": "", "none": ", no momentum", "before": ", momentum before"}[place]

    def hook(_: torch.optim.Optimizer) -> tuple[Any, Any]:
        return CompressionState(make(), error_feedback=feedback), compression_hook

    mean = lambda ranks, _: Averaged(make, ranks, feedback)  # noqa: E731
    return Method(name + suffix, mean, place, lr, pattern=name if suffix else None, hook=hook)


def votes(name: str, place: str, lr: float) -> Method:
    """The majority's signs."""
    pattern = None if name == "majority vote" else "majority vote"
    return Method(
        name,
        lambda *_: Voted(),
        place,
        lr,
        "votes",
        pattern,
        lambda _: (MajorityVote(), compression_hook),
    )


def power_sgd(rank: int) -> Method:
    """PowerSGD with error feedback."""
    return Method(
        f"PowerSGD, rank {rank}", lambda _, shapes: LowRank(rank, shapes),
        hook=lambda _: (PowerSGDState(rank), compression_hook),
    )  # fmt: skip


def deep_gradient(percent: float, masking: bool = True) -> Method:
    """Deep gradient compression without its warm-up, which this many steps would hardly leave."""

    def hook(optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
        state = DeepGradientState(optimizer, ratio=percent / 100, warm_up_epochs=0)
        return state, deep_gradient_hook

    # It has the momentum in it, before the selection: to the rule it is one without.
    mean = lambda _, shapes: DeepGradient(percent / 100, shapes, MOMENTUM, masking)  # noqa: E731
    name = f"deep gradient, {percent:g}%"
    return Method(
        name if masking else f"{name}, no masking",
        mean,
        "none",
        0.1,
        "before",
        None if masking else name,
        hook,
    )


def two_bits() -> Compressor:
    """To the nearest."""
    return IntegerQuantizer(2, block=1024)


_METHODS = [
    Method("fp32"),
    compressed("fp16", HalfPrecision),
    compressed("fp8", Float8),
    compressed("8 bits", lambda: IntegerQuantizer(8, block=1024)),
    compressed("4 bits", lambda: IntegerQuantizer(4, block=1024)),
    compressed("4 bits, by chance", lambda: IntegerQuantizer(4, block=1024, stochastic=True)),
    compressed("2 bits", two_bits),
    compressed("2 bits, by chance", lambda: IntegerQuantizer(2, block=1024, stochastic=True)),
    compressed("2 bits, feedback", two_bits, True),
    compressed("QSGD, 7 levels", lambda: QSGD(7)),
    Method("TernGrad", Ternary, hook=lambda _: (TernGradState(), compression_hook)),
    compressed("sign", ScaledSign),
    compressed("sign, feedback", ScaledSign, True, lr=0.02),
    compressed("1-bit SGD, feedback", OneBitSGD, True, lr=0.02),
    votes("majority vote", "none", 0.002),
    votes("majority vote, momentum after", "after", 0.0002),
    votes("Signum, majority vote", "before", 0.002),
    Method("fp32, no momentum", None, "none", 0.5, pattern="fp32"),
    compressed("sign, feedback", ScaledSign, True, "none", 0.5),
    compressed("1-bit SGD, feedback", OneBitSGD, True, "none", 0.5),
    compressed("2 bits, feedback", two_bits, True, "none", 0.5),
    compressed("sign, feedback", ScaledSign, True, "before", 0.05),
    Method("Adam", None, "Adam", 0.002, pattern="fp32"),
    Method("1-bit Adam", None, "Adam", 0.002),
    compressed("top 1%", lambda: TopK(0.01)),
    compressed("top 1%, feedback", lambda: TopK(0.01), True, lr=0.05),
    compressed("top 1%, feedback", lambda: TopK(0.01), True, "none", 0.5),
    compressed("top 0.1%, feedback", lambda: TopK(0.001), True, lr=0.02),
    deep_gradient(1),
    deep_gradient(1, masking=False),
    deep_gradient(0.1),
    compressed("random 1%, unbiased", lambda: RandomK(0.01), lr=0.002),
    compressed("random 1%, feedback", lambda: RandomK(0.01, unbiased=False), True, lr=0.02),
    compressed("random 1%, feedback", lambda: RandomK(0.01, unbiased=False), True, "none", 0.1),
    power_sgd(1),
    power_sgd(4),
]
METHODS = {method.name: method for method in _METHODS}
PATTERN = {
    method.name: method.pattern or method.name for method in _METHODS if method.name != "1-bit Adam"
}
TIMED = list(dict.fromkeys(PATTERN.values()))


# --- 1. steps ----------------------------------------------------------------------------------------------------


def shapes_of(sizes: Sequence[int]) -> list[torch.Size]:
    """Of an MLP's parameters."""
    return [parameter.shape for parameter in MLP(sizes).parameters()]


def lanes(
    method: Method,
    settings: Settings,
    seed: int,
    rates: Sequence[float],
    dtype: torch.dtype = torch.float32,
) -> Iterator[torch.Tensor]:
    """The parameters that all ranks have, (K, N), before the first step and after each; a lane for each rate."""
    p, sizes = settings.ranks, (64, settings.width, settings.width, 10)
    model, digits = Replicas(sizes), Digits.drawn(settings.samples, seed, dtype)
    pools = digits.pools(1, by_class=False).expand(p, -1)
    rules = [method.rule(settings, shapes_of(sizes)) for _ in rates]
    X = model.start(seed, dtype).expand(len(rates), -1)
    yield X
    for chosen in digits.batches(pools, settings.batch, seed + 1):
        every = chosen.repeat(len(rates), 1)
        G, _ = model.gradients(X.repeat_interleave(p, 0), digits.x[every], digits.y[every])
        lane = zip(rules, X, G.view(len(rates), p, -1), rates, strict=True)
        X = torch.stack([rule.step(x, own, lr) for rule, x, own, lr in lane])
        yield X


def looks(
    method: Method, settings: Settings, seed: int, rates: Sequence[float], every: int
) -> list[list[float | None]]:
    """By learning rate, the loss on images held out, every so many steps; None where it is no number."""
    model = Replicas((64, settings.width, settings.width, 10))
    digits = Digits.drawn(settings.samples, seed)
    steps = islice(lanes(method, settings, seed, rates), 0, settings.steps + 1, every)
    found = [model.losses_on(X, digits.x_rest, digits.y_rest).tolist() for X in steps]
    return [[rounded(look[k]) for look in found] for k in range(len(rates))]


def rounded(loss: float) -> float | None:
    """With five digits after the point; None for what is no number."""
    return round(loss, 5) if math.isfinite(loss) else None


def tuned(name: str, settings: Settings) -> dict[str, Any]:
    """The learning rate of a method, on seeds that no result is taken from."""
    start, method = time.process_time(), METHODS[name]

    def ends(rates: list[float]) -> list[list[float]]:
        seeds = range(TUNING, TUNING + settings.tuning)
        by_seed = [looks(method, settings, seed, rates, settings.steps) for seed in seeds]
        return [[math.inf if one[-1] is None else one[-1] for one in each] for each in by_seed]

    best, tried = curves.tuned_lr(ends, method.lr)
    return {
        "ends": {str(lr): [rounded(loss) for loss in losses] for lr, losses in tried.items()},
        "best": best,
        "seconds": round(time.process_time() - start, 2),
    }


def measured(name: str, settings: Settings, seed: int, best: Callable[[], float]) -> dict[str, Any]:
    """One method and seed, at the rate that was tuned and at its family's common one."""
    start, method = time.process_time(), METHODS[name]
    rates = sorted({best(), method.common})
    found = looks(method, settings, seed, rates, settings.every)
    return {
        "losses": {str(rate): losses for rate, losses in zip(rates, found, strict=True)},
        "seconds": round(time.process_time() - start, 2),
    }


# --- 2. seconds --------------------------------------------------------------------------------------------------


RANKS = 8
BUCKET_MB = 25  # as PyTorch has it, before it is scaled


def wrapped(method: Method, model: nn.Module, **options: Any) -> DistributedDataParallel:
    """The model, its gradients averaged in the method's way."""
    ddp = DistributedDataParallel(model, **options)
    if method.hook is not None:
        ddp.register_comm_hook(*method.hook(torch.optim.SGD(ddp.parameters(), lr=0.1)))
    return ddp


def steps_timed(work: Workload, names: list[str], scale: int) -> dict[str, float]:
    """On each rank: seconds of a step from forward's start to backward's end, by method. The third:
    buckets are settled.
    """
    found = {}
    for name in names:
        model = wrapped(METHODS[name], StandIn(work, scale), bucket_cap_mb=BUCKET_MB / scale)
        for _ in range(3):
            model.zero_grad()
            dist.barrier()
            start = emulation.now()
            model(torch.ones(1)).sum().backward()
            found[name] = emulation.now() - start
    return found


def timed(name: str, gigabits: int, names: list[str], scale: int) -> dict[str, Any]:
    """A model's seconds per step on a link: the slowest rank's, by method."""
    start = time.perf_counter()
    work = WORKLOADS[name]
    device = EmulatedDevice(A100.flops / scale, A100.bandwidth / scale)
    network = EmulatedNetwork(LATENCY, gigabits * 1e9 / 8 / scale)
    run = launch(
        steps_timed, RANKS, work, names, scale,
        backend="ring", devices=device, network=network, timeout=None,
    )  # fmt: skip
    step = {each: float(f"{max(one[each] for one in run):.5g}") for each in names}
    return {
        "compute": float(f"{work.seconds:.5g}"),
        "step": step,
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
        yield key("tuned", name), partial(tuned, name, settings)
    for seed in range(seeds):
        for name in names:
            best = partial(lambda where: runs[where]["best"], key("tuned", name))
            yield key("steps", name, seed), partial(measured, name, settings, seed, best)
    timed_names = [name for name in TIMED if name in names]
    for model in models:
        for link in links:
            work = partial(timed, model, link, timed_names, settings.scale)
            yield key("seconds", model, link), work


def load(path: Path, settings: Settings) -> dict[str, Any]:
    """The results so far. ValueError where the file was made with other settings."""
    what = (__doc__ or "").split("\n\n", 1)[0].replace("\n", " ")
    return results_file.load(path, what, format=FORMAT, settings=asdict(settings))


def study(
    path: Path, settings: Settings, seeds: int, budget: float | None = None, *,
    names: Sequence[str] = tuple(METHODS), models: Sequence[str] = tuple(WORKLOADS),
    links: Sequence[int] = LINKS,
) -> bool:  # fmt: skip
    """Runs what is missing in the file at `path`; True if nothing is missing any more."""
    torch.set_num_threads(1)
    results = load(path, settings)
    results |= {"methods": list(names), "models": list(models), "links": list(links)}
    results["patterns"] = {name: PATTERN[name] for name in names if name in PATTERN}
    results["common"] = {name: METHODS[name].common for name in names}
    todo = jobs(settings, seeds, list(names), list(models), list(links), results["runs"])
    return results_file.run_missing(results, path, todo, seeds, budget)


def of(results: dict[str, Any], method: str) -> tuple[list[dict[str, Any]], str, str]:
    """A method's curves, by seed; the learning rate that was tuned for it, and the common one."""
    runs, seeds = results["runs"], range(results["seeds"])
    losses = [runs[key("steps", method, seed)]["losses"] for seed in seeds]
    return losses, str(runs[key("tuned", method)]["best"]), str(results["common"][method])


def target_of(results: dict[str, Any]) -> float:
    """The loss that fp32 has, at its tuned learning rate, after half of its steps: the median over the seeds."""
    losses, best, _ = of(results, "fp32")
    return curves.median_at(losses, best, len(losses[0][best]) // 2)


def summary(results: dict[str, Any]) -> Iterator[str]:
    """A line per method and rate: the loss at the end, its difference from fp32's by seed, and steps to the target."""
    target, every = target_of(results), results["settings"]["every"]
    yield f"the loss at the end, less fp32's by seed; steps to a held-out loss of {target:.3f}"
    base, best, common = of(results, "fp32")
    bases = {True: curves.at_end(base, best), False: curves.at_end(base, common)}
    for name in results["methods"]:
        losses, best, common = of(results, name)
        for lr in dict.fromkeys([best, common]):
            ends = curves.at_end(losses, lr)
            low, high = curves.paired_interval(ends, bases[lr == best])
            steps = [curves.steps_to(run[lr], target, every) for run in losses]
            there = sum(map(math.isfinite, steps))
            yield (
                f"{name:36s} lr {lr:<8s} loss {statistics.median(ends):.4f} ({low:+.4f} to {high:+.4f})"
                f"  {there} of {len(steps)} seeds, median {statistics.median(steps):4g} steps"
                f"{'' if lr == best else '  common lr'}"
            )


def main(arguments: list[str] | None = None) -> None:
    """Measures, and prints a line per method."""
    results_file.command(arguments, __doc__, RESULTS, Settings(), study, load, summary)


if __name__ == "__main__":
    main()
