"""Methods that talk less, measured: what a step of each is worth, on handwritten digits,
and what it takes on a given link.

    python studies/less_communication.py                    # until all is measured; writes studies/results/...json
    python studies/less_communication.py --budget 100       # stop after 100 s; call again to go on where it stopped

1. Steps. Four ranks, real processes with real messages, train an MLP under DistributedDataParallel; each method is a
   hook, or an optimizer, of dtcourse. Loss on images held out is taken every few steps. Every method has three learning
   rates, a factor of 3 apart, round a middle of its own, since a method that sends a sign, or all of a residual at
   once, wants another one; a reader takes each method's best. Seeds draw weights, images and their order; all methods
   of a seed share them, so differences are taken within a seed.

2. Seconds. One step of each method on an emulated cluster of eight ranks (the virtual clock: the same seconds on every
   machine), for two models and four links. Compressing really runs, and takes the bytes and operations that it takes
   there. The model is a stand-in with as many numbers per rank and as many operations as the one it stands for, both
   1/scale of the real, on a device and links of 1/scale of the real speed: all ratios are kept. The device is an A100's
   312 teraflops and 2 terabytes a second (shared/published/hw_specs.json), of which a model reaches a share that is an
   assumption, not a measurement (dtcourse/course/stand_in.py).

Seconds to a target are steps times seconds per step. The file holds every run with settings, machine, date and
versions. It is written after each run, and a run that is in it is not repeated.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from dtcourse import data, emulation, launch
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
from dtcourse.course import results_file
from dtcourse.course.curves import median_at, quickest_lr
from dtcourse.course.results_file import key
from dtcourse.course.stand_in import A100, LATENCY, LINKS, WORKLOADS, StandIn, Workload
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork
from dtcourse.models import MLP

RESULTS = Path(__file__).parent / "results" / "less_communication.json"
FORMAT = 1
RATES = (1 / 3, 1.0, 3.0)  # times a method's middle


@dataclass(frozen=True)
class Settings:
    """What the numbers depend on, `scale` those of part 2;
    a results file is continued only with the same ones (seeds may grow).
    """

    ranks: int = 4
    batch: int = 8  # of each rank
    steps: int = 300
    every: int = 10  # steps between two looks at the loss
    samples: int = 600  # images to train on
    width: int = 128
    momentum: float = 0.9
    scale: int = 128


@dataclass(frozen=True)
class Method:
    """What averages the gradients, and the middle of its learning rates.

    hook: given the model's optimizer, the state of a hook and the hook; None: plain all-reduce
    momentum: SGD's; None: the one in Settings. What has a momentum of its own gives 0
    """

    name: str
    hook: Callable[[torch.optim.Optimizer], tuple[Any, Any]] | None = None
    lr: float = 0.05
    momentum: float | None = None


def compressed(
    name: str, make: Callable[[], Compressor], feedback: bool = False, lr: float = 0.05
) -> Method:
    """A compressor; feedback: with error feedback."""

    def hook(_: torch.optim.Optimizer) -> tuple[Any, Any]:
        return CompressionState(make(), error_feedback=feedback), compression_hook

    return Method(name, hook, lr)


def power_sgd(rank: int) -> Method:
    """PowerSGD with error feedback."""
    return Method(f"PowerSGD, rank {rank}", lambda _: (PowerSGDState(rank), compression_hook))


def deep_gradient(percent: float) -> Method:
    """Deep gradient compression without its warm-up, which this many steps would hardly leave."""

    def hook(optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
        state = DeepGradientState(optimizer, ratio=percent / 100, warm_up_epochs=0)
        return state, deep_gradient_hook

    return Method(f"deep gradient, {percent:g}%", hook, momentum=0.0)


_METHODS = [
    Method("fp32"),
    compressed("fp16", HalfPrecision),
    compressed("fp8", Float8),
    compressed("8 bits", lambda: IntegerQuantizer(8, block=1024)),
    compressed("4 bits", lambda: IntegerQuantizer(4, block=1024)),
    compressed("4 bits, by chance", lambda: IntegerQuantizer(4, block=1024, stochastic=True)),
    compressed("2 bits", lambda: IntegerQuantizer(2, block=1024)),
    compressed("2 bits, by chance", lambda: IntegerQuantizer(2, block=1024, stochastic=True)),
    compressed("2 bits, feedback", lambda: IntegerQuantizer(2, block=1024), True),
    compressed("QSGD, 7 levels", lambda: QSGD(7)),
    Method("TernGrad", lambda _: (TernGradState(), compression_hook)),
    compressed("sign", ScaledSign),
    compressed("sign, feedback", ScaledSign, True),
    compressed("1-bit SGD, feedback", OneBitSGD, True),
    Method("majority vote", lambda _: (MajorityVote(), compression_hook), lr=0.0005),
    compressed("top 1%", lambda: TopK(0.01)),
    compressed("top 1%, feedback", lambda: TopK(0.01), True),
    compressed("top 0.1%, feedback", lambda: TopK(0.001), True),
    deep_gradient(1),
    deep_gradient(0.1),
    compressed("random 1%, unbiased", lambda: RandomK(0.01), lr=0.005),
    compressed("random 1%, feedback", lambda: RandomK(0.01, unbiased=False), True),
    power_sgd(1),
    power_sgd(4),
]
METHODS = {method.name: method for method in _METHODS}


# --- 1. steps ----------------------------------------------------------------------------------------------------


def wrapped(
    method: Method, model: nn.Module, lr: float, momentum: float, **options: Any
) -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    """The model, its gradients averaged in the method's way, and its optimizer."""
    ddp = DistributedDataParallel(model, **options)
    own = momentum if method.momentum is None else method.momentum
    optimizer = torch.optim.SGD(ddp.parameters(), lr=lr, momentum=own)
    if method.hook is not None:
        ddp.register_comm_hook(*method.hook(optimizer))
    return ddp, optimizer


def trained(name: str, settings: Settings, seed: int, lr: float) -> list[float | None]:
    """On each rank: the loss on images held out, every so many steps; None from where it is no number any more."""
    rank, p = dist.get_rank(), dist.get_world_size()
    pool = data.digits("train")
    order = torch.randperm(len(pool.labels), generator=torch.Generator().manual_seed(seed))
    own, rest = order[: settings.samples], order[settings.samples :]
    x, y = pool.images.flatten(1)[own], pool.labels[own]
    x_rest, y_rest = pool.images.flatten(1)[rest], pool.labels[rest]
    sizes = x.shape[1], settings.width, settings.width, 10
    model, optimizer = wrapped(METHODS[name], MLP(sizes, seed=seed), lr, settings.momentum)
    shuffle = torch.Generator().manual_seed(seed + 1)
    losses: list[float | None] = []
    for step in range(settings.steps + 1):
        if step % settings.every == 0:
            with torch.no_grad():
                loss = F.cross_entropy(model.module(x_rest), y_rest).item()
            if not math.isfinite(loss):
                return losses + [None] * (settings.steps // settings.every + 1 - len(losses))
            losses.append(round(loss, 5))
        mine = torch.randint(len(x), (p, settings.batch), generator=shuffle)[rank]
        optimizer.zero_grad()
        F.cross_entropy(model(x[mine]), y[mine]).backward()
        optimizer.step()
    return losses


def measured(name: str, settings: Settings, seed: int) -> dict[str, Any]:
    """One method and seed at its three rates."""
    start = time.perf_counter()
    middle = METHODS[name].lr
    rates = [float(f"{factor * middle:.3g}") for factor in RATES]
    run = launch(_all_rates, settings.ranks, name, settings, seed, rates, timeout=None)
    curves = {str(lr): losses for lr, losses in zip(rates, run[0], strict=True)}
    return {"losses": curves, "seconds": round(time.perf_counter() - start, 2)}


def _all_rates(
    name: str, settings: Settings, seed: int, rates: list[float]
) -> list[list[float | None]]:
    return [trained(name, settings, seed, lr) for lr in rates]


# --- 2. seconds --------------------------------------------------------------------------------------------------


RANKS = 8
BUCKET_MB = 25  # as PyTorch has it, before it is scaled


def steps_timed(work: Workload, names: list[str], scale: int) -> dict[str, float]:
    """On each rank: seconds of a step from forward's start to backward's end, by method. The third:
    buckets are settled.
    """
    found = {}
    for name in names:
        model = StandIn(work, scale)
        model, _ = wrapped(METHODS[name], model, 0.1, 0.0, bucket_cap_mb=BUCKET_MB / scale)
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
    settings: Settings, seeds: int, names: list[str], models: list[str], links: list[int]
) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """(key, run) of everything, in order: seconds first, then all methods seed by seed."""
    for model in models:
        for link in links:
            yield key("seconds", model, link), partial(timed, model, link, names, settings.scale)
    for seed in range(seeds):
        for name in names:
            yield key("steps", name, seed), partial(measured, name, settings, seed)


def load(path: Path, settings: Settings) -> dict[str, Any]:
    """The results so far. ValueError where the file was made with other settings."""
    what = (__doc__ or "").split("\n", 1)[0]
    return results_file.load(path, what, format=FORMAT, settings=asdict(settings))


def study(
    path: Path, settings: Settings, seeds: int, budget: float | None = None, *,
    names: Sequence[str] = tuple(METHODS), models: Sequence[str] = tuple(WORKLOADS),
    links: Sequence[int] = LINKS,
) -> bool:  # fmt: skip
    """Runs what is missing in the file at `path`; True if nothing is missing any more."""
    results = load(path, settings)
    results |= {"methods": list(names), "models": list(models), "links": list(links)}
    todo = jobs(settings, seeds, list(names), list(models), list(links))
    return results_file.run_missing(results, path, todo, seeds, budget)


def best_lr(results: dict[str, Any], method: str, target: float) -> tuple[str, list[float]]:
    """The learning rate whose median number of steps to the target is lowest, and each seed's number."""
    runs = [
        results["runs"][key("steps", method, seed)]["losses"] for seed in range(results["seeds"])
    ]
    return quickest_lr(runs, target, results["settings"]["every"])


def target_of(results: dict[str, Any]) -> float:
    """The loss that fp32 has, at its best learning rate, after half of its steps: the median over the seeds."""
    runs = [results["runs"][key("steps", "fp32", seed)] for seed in range(results["seeds"])]
    half = len(next(iter(runs[0]["losses"].values()))) // 2
    losses = [run["losses"] for run in runs]
    return min(median_at(losses, rate, half) for rate in losses[0])


def summary(results: dict[str, Any]) -> Iterator[str]:
    """A line per method: steps to the target, and on each link the seconds to it over those of fp32."""
    target = target_of(results)
    yield (
        f"to a held-out loss of {target:.3f}: steps (median, quartiles), then seconds over those of fp32 by model "
        "and Gbit/s"
    )
    places = [(model, link) for model in results["models"] for link in results["links"]]
    yield " " * 52 + "".join(f"{name.split('-')[0][:6] + ' ' + str(g):>11s}" for name, g in places)
    base = statistics.median(best_lr(results, "fp32", target)[1])
    for name in results["methods"]:
        lr, steps = best_lr(results, name, target)
        low, _, high = (
            statistics.quantiles(steps, n=4) if math.isfinite(max(steps)) else (math.nan,) * 3
        )
        middle = statistics.median(steps)
        ratios = []
        for model, link in places:
            step = results["runs"][key("seconds", model, link)]["step"]
            ratios.append(middle * step[name] / (base * step["fp32"]))
        yield (
            f"{name:22s} lr {lr:<6s} {middle:5.0f} ({low:.0f} to {high:.0f})".ljust(52)
            + "".join(f"{ratio:11.2f}" for ratio in ratios)
        )


def main(arguments: list[str] | None = None) -> None:
    """Measures, and prints a line per method."""
    results_file.command(arguments, __doc__, RESULTS, Settings(), study, load, summary)


if __name__ == "__main__":
    main()
