"""Does `diagnose` name what was planted on the virtual clock, a slow rank for one, and nothing where nothing was?

    python studies/diagnosis.py                    # until all is run; writes studies/results/diagnosis.json
    python studies/diagnosis.py --budget 100       # stop after 100 s; call again to go on where it stopped

Each run trains two steps on four ranks, over the course's ring backend, with devices and links drawn by the seed so
that exchanging takes 0.4 to 1.0 of the time of computing. A run is data parallel in even seeds and a pipeline in odd
ones, where no line says otherwise. Planted are:

    slow rank      one rank's device has 1 / factor of the others' speed
    slow link      one cable of the ring has 1 / factor of the bandwidth, both ways
    small buckets  a bucket for each parameter, at a latency with which the exchange takes `factor` times as long as it
                   takes in one bucket (all data parallel)
    stages         one stage of the pipeline has `factor` times the layers of the others, which are four, and ten at
                   1.3 (all pipelines; exchanging is to computing as said above where they are four)
    log            one rank writes so many bytes of log after each step that the step takes it `factor` times as long
                   as computing alone, at LOG_RATE
    data           one rank's loader takes as long before each step, on the lane of the training
                   (of a pipeline both on its first rank: elsewhere they may hide in the bubble, and then cost nothing)
    synchronisation  a number is all-reduced, and read before anything else is done: in forward the mean of what each
                   linear layer or convolution puts out; in a pipeline one after each backward of a micro-batch. The
                   latency is one with which computing and these take `factor` times as long as computing (gradients go
                   in one bucket: with that latency more would be a cause of their own). A pipeline loses more by
                   it: its ranks wait for one another after each micro-batch
    recomputing    activations are dropped and computed again. At 1.3 each forward is repeated once: a checkpoint
                   around each layer, or Pipeline(recompute=True). At 1.6 there are checkpoints in checkpoints (the
                   recursion in Chen et al., arXiv 1604.06174): around all layers (of a stage), their halves, and each

All of these but the last are planted at three factors. Recomputing costs what it costs: where backward takes twice as
long as forward, repeating all forwards makes 4/3 of the computing, and a checkpoint of the course's, as one of
PyTorch's, stops before products whose result backward does not need. So its factor is only about what computing takes
(1.2 to 1.35, and 1.5 to 1.7, in FLOPs), and nobody's run takes 5 times as long from it.

And nothing is planted in twenty healthy runs (half data parallel, half pipelines). "two" plants a slow rank and a slow
link of other ranks, both at the factor. Thresholds were set on MLPs (--model mlp); the committed runs are of
Transformers, and of convolutional networks where the parallelism is data parallel and the seed is divisible by 4.

runs["PLANTED | FACTOR | SEED"] =
    first:    the kind that diagnose names first, or "nothing"
    where:    the ranks that it names with it
    causes:   all kinds it names, the costliest first
    right:    whether the first is the planted one, at its place (of "two": whether the two are the first two)
    lost:     what it says was lost to the first, as a part of the window
    parallel: "data" or "pipeline"
    window:   emulated seconds of the two steps
    seconds:  of the launch on the clock of the machine, which says nothing about the emulated ones
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dtcourse import emulation, events, launch
from dtcourse.course import results_file
from dtcourse.course.results_file import key
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork
from dtcourse.launch import Run
from dtcourse.memory.checkpointing import checkpoint
from dtcourse.models import MLP, ConvNet, Transformer, TransformerConfig
from dtcourse.pipeline_parallel import Action, Pipeline, layers_of, one_f_one_b
from dtcourse.pipeline_parallel.actions import BACKWARD
from dtcourse.profiling.diagnosis import diagnose

RESULTS = Path(__file__).parent / "results" / "diagnosis.json"
FORMAT = 1
FACTORS = (1.3, 2.0, 5.0)
REPEATED = (1.3, 1.6)  # about how many times as long computing takes with forwards repeated
PLANTED = {  # at which factors
    "slow rank": FACTORS, "slow link": FACTORS, "small buckets": FACTORS, "stages": FACTORS, "log": FACTORS,
    "data": FACTORS, "synchronisation": FACTORS, "recomputing": REPEATED,
}  # fmt: skip
NAMES = {"stages": "unequal work", "log": "writing its log", "data": "waiting for data"}
LOG_RATE = 50e6  # bytes per second that a log is written with: lines of JSON by one thread to a shared disk
HEALTHY = 20
RANKS = 4


@dataclass(frozen=True)
class Settings:
    """What the numbers depend on; a results file is continued only with the same ones (seeds may grow)."""

    model: str = "transformer"
    width: int = 32
    layers: int = 4
    samples: int = 4
    length: int = 8
    micro_batches: int = 6
    steps: int = 2
    flops: float = 1e9
    buckets: int = 3


@dataclass(frozen=True)
class Case:
    """One run: what is trained how, and on what.

    parallel: "data" or "pipeline"
    layers:   by stage; of data parallelism, the model's in one number
    bucket_cap_mb: of data parallelism
    recompute: the pipeline's own; checkpoints: how many lie around each layer, one in another
    standing: seconds by rank in which it stands still in each step, in what is planted
    """

    parallel: str
    model: str
    seed: int
    layers: tuple[int, ...]
    devices: tuple[EmulatedDevice, ...]
    network: EmulatedNetwork
    ranks: tuple[tuple[int, ...], ...]  # where it was planted, by fault
    bucket_cap_mb: float = 25.0
    planted: str = "nothing"
    standing: tuple[float, ...] = (0.0,) * RANKS
    recompute: bool = False
    checkpoints: int = 0


def case(settings: Settings, planted: str, factor: float, seed: int) -> Case:
    """What a seed draws, and where the fault lies."""
    draw = random.Random(f"{settings.model} {seed}")
    parallel = {"small buckets": "data", "stages": "pipeline"}.get(
        planted, "pipeline" if seed % 2 else "data"
    )
    if planted == "nothing":  # twenty seeds: ten of each
        parallel = "pipeline" if seed >= HEALTHY // 2 else "data"
    model = settings.model
    if model == "transformer" and parallel == "data" and seed % 4 == 0:
        model = "convnet"
    exchange, latency = draw.uniform(0.4, 1.0), draw.uniform(2e-4, 6e-4)
    slow, place = draw.randrange(RANKS), draw.randrange(RANKS - 1)
    if planted in ("log", "data") and parallel == "pipeline":
        slow = 0
    layers = (settings.layers,) * (RANKS if parallel == "pipeline" else 1)
    if planted == "stages":
        each = 10 if factor < 2 else settings.layers
        layers = tuple(round(each * (factor if rank == slow else 1)) for rank in range(RANKS))
    device = EmulatedDevice(flops=settings.flops)
    slower = device.slower(factor if planted in ("slow rank", "two") else 1.0)
    devices = tuple(slower if rank == slow else device for rank in range(RANKS))
    cable = place, place + 1
    if planted == "two" and slow in cable:
        cable = next((a, a + 1) for a in range(RANKS - 1) if slow not in (a, a + 1))
    work, nbytes, tensors = costs(settings, parallel, model, seed)
    seconds = work / settings.flops
    # A ring of four sends each byte 1.5 times, in six messages of a collective.
    bandwidth = (1.5 if parallel == "data" else 2.0) * nbytes / (exchange * seconds)
    alpha = latency * seconds
    if planted == "small buckets":
        alpha = (factor - 1) * exchange * seconds / (6 * tensors)
    times = 1 if parallel == "data" else settings.micro_batches
    if planted == "synchronisation":
        numbers = times if parallel == "pipeline" else len(watched(made(settings, model, seed)[0]))
        alpha = (factor - 1) * times * seconds / (6 * numbers)
    cables = {}
    if planted in ("slow link", "two"):
        slow_one = EmulatedNetwork(alpha, bandwidth / factor)
        cables = {cable: slow_one, cable[::-1]: slow_one}
    network = EmulatedNetwork(alpha, bandwidth, cables=cables)
    where: dict[str, tuple[tuple[int, ...], ...]] = {
        "slow rank": ((slow,),), "stages": ((slow,),), "slow link": (cable,), "two": ((slow,), cable),
        "log": ((slow,),), "data": ((slow,),),
    }  # fmt: skip
    stands = (factor - 1) * seconds * times
    standing = tuple(
        stands if rank == slow and planted in ("log", "data") else 0.0 for rank in range(RANKS)
    )
    buckets = 1 if planted == "synchronisation" else settings.buckets
    cap = 1e-6 if planted == "small buckets" else nbytes / buckets / 2**20
    ranks = where.get(planted, ())
    recompute, checkpoints = False, 0
    if planted == "recomputing":
        recompute = parallel == "pipeline" and factor == REPEATED[0]
        checkpoints = 0 if recompute else 1 if factor == REPEATED[0] else 3
    return Case(
        parallel, model, seed, layers, devices, network, ranks, cap, planted, standing, recompute, checkpoints
    )  # fmt: skip


def made(settings: Settings, model: str, seed: int) -> tuple[nn.Module, Tensor, Any]:
    """A model for data parallelism, a batch of a rank, and what makes a loss of an output."""
    draw, make = random.Random(seed), torch.Generator().manual_seed(seed)
    width = settings.width * draw.choice((1, 2))
    n = settings.samples
    if model == "mlp":
        depth = settings.layers + draw.randrange(3)
        x = torch.randn(n * 4, width, generator=make)
        return MLP((width, *[width] * depth, width)), x, lambda y: y.square().mean()
    if model == "convnet":
        x = torch.randn(n, 1, 8, 8, generator=make)
        return ConvNet((8, width), batch_norm=False), x, lambda y: y.square().mean()
    config = TransformerConfig(
        vocab=64, d_model=width, n_layers=settings.layers, n_heads=4, max_length=settings.length
    )
    tokens = torch.randint(64, (n, settings.length), generator=make)
    return Transformer(config), tokens, lambda y: y.square().mean()


def layer(settings: Settings, model: str, seed: int) -> tuple[nn.Module, Tensor]:
    """One layer of a pipeline's stage, and a micro-batch."""
    draw, make = random.Random(seed), torch.Generator().manual_seed(seed)
    width = settings.width * draw.choice((1, 2))
    if model == "mlp":
        return nn.Sequential(nn.Linear(width, width), nn.ReLU()), torch.randn(
            settings.samples * 4, width, generator=make
        )
    from dtcourse.models.transformer import Block

    config = TransformerConfig(d_model=width, n_heads=4, max_length=settings.length)
    return Block(config), torch.randn(settings.samples, settings.length, width, generator=make)


def costs(settings: Settings, parallel: str, model: str, seed: int) -> tuple[float, int, int]:
    """FLOPs of a step (of a micro-batch in a stage), bytes that are exchanged for it, and how many parameters."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        if parallel == "data":
            module, x, loss = made(settings, model, seed)
            loss(module(x)).backward()
            nbytes = sum(p.nbytes for p in module.parameters())
        else:
            module, x = layer(settings, model, seed)
            module(x.requires_grad_()).square().mean().backward()
            nbytes = x.nbytes
    times = 1 if parallel == "data" else settings.layers
    return counter.get_total_flops() * times, nbytes, len(list(module.parameters()))


class Checkpointed(nn.Module):
    """Layers, of which only the input is kept, in `deep` checkpoints: around all, around their halves, and so on."""

    def __init__(self, layers: list[nn.Module], deep: int) -> None:
        super().__init__()
        half = (len(layers) + 1) // 2
        self.layers = nn.Sequential(*layers)
        if deep > 1 and len(layers) > 1:
            parts = layers[:half], layers[half:]
            self.layers = nn.Sequential(*[Checkpointed(part, deep - 1) for part in parts])

    def forward(self, x: Tensor) -> Tensor:
        """Its output, which backward computes once more."""
        return checkpoint(self.layers, x)


def as_planted(case: Case, module: nn.Module) -> nn.Module:
    """A model, or a stage, with checkpoints or with synchronisations in its forward, if those are planted."""
    if case.checkpoints:
        layers = layers_of(module)
        if case.checkpoints == 1:
            return nn.Sequential(*[Checkpointed([one], 1) for one in layers])
        return Checkpointed(layers, case.checkpoints)
    if case.planted == "synchronisation" and case.parallel == "data":
        for one in watched(module):
            one.register_forward_hook(lambda _layer, _args, output: read(output.detach().mean()))
    return module


def watched(module: nn.Module) -> list[nn.Module]:
    """The layers of which somebody wants to know the mean output."""
    return [one for one in module.modules() if isinstance(one, nn.Linear | nn.Conv2d)]


class WatchedBatch:
    """A pipeline's batch, with a number that all ranks read after each backward."""

    def __init__(self, batch: Any) -> None:
        self.batch, self.mean_loss = batch, batch.mean_loss

    def perform(self, action: Action, mail: Any) -> None:
        """One action of this rank."""
        self.batch.perform(action, mail)
        if action.kind == BACKWARD:
            read(torch.ones(()))


class WatchedPipeline(Pipeline):
    """One whose micro-batches are watched."""

    def batch(self, *args: Any, **options: Any) -> Any:
        """A batch before its first action."""
        return WatchedBatch(super().batch(*args, **options))


def read(number: Tensor) -> None:
    """Waits for the sum over ranks of a number, as what logs it does."""
    import torch.distributed as dist

    dist.all_reduce(number)
    number.item()


def train(case: Case, settings: Settings) -> None:
    """In a rank: the steps, each marked."""
    import torch.distributed as dist

    rank = dist.get_rank()
    if case.parallel == "data":
        module, x, loss = made(settings, case.model, case.seed)
        model = DistributedDataParallel(as_planted(case, module), bucket_cap_mb=case.bucket_cap_mb)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(settings.steps):
            with events.span("step", "step"), standing_still(case, rank):
                loss(model(x)).backward()
                optimizer.step()
                optimizer.zero_grad()
        return
    _, x = layer(settings, case.model, case.seed)
    stage = nn.Sequential(
        *[layer(settings, case.model, case.seed)[0] for _ in range(case.layers[rank])]
    )
    schedule = one_f_one_b(RANKS, settings.micro_batches)
    kind = WatchedPipeline if case.planted == "synchronisation" else Pipeline
    pipeline = kind(
        [as_planted(case, stage)],
        schedule,
        lambda y, target: y.square().mean(),
        recompute=case.recompute,
    )
    batch = torch.cat([x] * settings.micro_batches)
    pipeline.step(batch, batch)  # in the first step headers travel, too
    for _ in range(settings.steps):
        with events.span("step", "step"), standing_still(case, rank):
            pipeline.step(batch, batch)


@contextmanager
def standing_still(case: Case, rank: int) -> Iterator[None]:
    """Around a step: a loader before it, or a log after it, as long as this rank's is."""
    seconds = case.standing[rank]
    if seconds and case.planted == "data":
        with events.span("next batch", "data"):
            emulation.sleep(seconds)
    yield
    if seconds and case.planted == "log":
        with events.span("write", "log", bytes=round(seconds * LOG_RATE)):
            emulation.sleep(seconds)


def run(case: Case, settings: Settings) -> Run:
    """The recorded run."""
    return launch(
        train, RANKS, case, settings, backend="ring", device="cpu", record=True, timeout=600,
        devices=list(case.devices), network=case.network,
    )  # fmt: skip


def measure(settings: Settings, planted: str, factor: float, seed: int) -> dict[str, Any]:
    """One run of the results file."""
    start = time.perf_counter()
    one = case(settings, planted, factor, seed)
    found = diagnose(run(one, settings))
    kinds = {"two": ["slow rank", "slow link"], "nothing": []}.get(
        planted, [NAMES.get(planted, planted)]
    )
    places = one.ranks or ((),)
    wanted = list(zip(kinds, places, strict=False))
    said = [(cause.kind, cause.ranks) for cause in found.causes]
    return {
        "first": found.first,
        "where": list(found.causes[0].ranks) if found.causes else [],
        "causes": [cause.kind for cause in found.causes],
        "right": sorted(said[: len(wanted)]) == sorted(wanted) if wanted else not said,
        "lost": round(found.causes[0].seconds / found.seconds, 3) if found.causes else 0.0,
        "parallel": one.parallel,
        "window": found.seconds,
        "seconds": round(time.perf_counter() - start, 1),
    }


def jobs(settings: Settings, seeds: int) -> Iterator[results_file.Job]:
    """Every run, seed by seed."""
    for seed in range(seeds):
        for planted in PLANTED:
            for factor in PLANTED[planted]:
                yield key(planted, factor, seed), partial(measure, settings, planted, factor, seed)
        yield key("two", 2.0, seed), partial(measure, settings, "two", 2.0, seed)
        for healthy in range(seed, HEALTHY, seeds):
            yield key("nothing", 1.0, healthy), partial(measure, settings, "nothing", 1.0, healthy)


def load(path: Path, settings: Settings) -> dict[str, Any]:
    """The results so far."""
    what = (__doc__ or "").split("\n")[0]
    return results_file.load(path, what, format=FORMAT, settings=asdict(settings))


def study(path: Path, settings: Settings, seeds: int, budget: float | None) -> bool:
    """Runs what is missing; True if nothing is."""
    results = load(path, settings)
    return results_file.run_missing(results, path, jobs(settings, seeds), seeds, budget)


def summary(results: dict[str, Any]) -> Iterable[str]:
    """A line for each fault and factor: how many runs were right, and what the others were taken for."""
    by_case: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for name, run in results["runs"].items():
        planted, factor, _ = name.split(" | ")
        by_case[planted, factor].append(run)
    for (planted, factor), runs in sorted(by_case.items()):
        wrong = [", ".join(run["causes"]) or "nothing" for run in runs if not run["right"]]
        right = len(runs) - len(wrong)
        yield f"{planted:15} {factor:>4} {right:3} of {len(runs):3}  {'; '.join(wrong)}"


if __name__ == "__main__":
    results_file.command(None, __doc__, RESULTS, Settings(), study, load, summary, always=True)
