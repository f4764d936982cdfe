"""A small training that survives, for the monkey of fault_tolerance/chaos: in a study, in tests, in a lesson.

Four ranks train an MLP in double for 200 steps and save every so many of them. `train` is one rank's whole life, from
the newest checkpoint on; `recovery_of` keeps it going; `undisturbed` and `disturbed` run it, without and with a monkey.

    bits = undisturbed(Settings())["bits"]
    disturbed(Settings(), seed=7, bits=bits)["same"]

Every second seed is DistributedDataParallel, started again with four ranks; the others are VirtualRanks, started again
with two, three or four, another draw each time.
"""

from __future__ import annotations

import random
import tempfile
import time
import warnings
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtcourse import launch
from dtcourse.data import DistributedSampler, ResumableLoader
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.fault_tolerance import (
    BucketLayout,
    Checkpoints,
    Deadline,
    Limits,
    NotSaved,
    Preemption,
    RandomStates,
    Recovery,
    TrainingState,
    VirtualRanks,
    run_log,
)
from dtcourse.fault_tolerance.chaos import Monkey, Report, plan
from dtcourse.fault_tolerance.fingerprints import digest

WHAT = ("DDP", "virtual ranks")
WIDTH, SAMPLES, BATCH = 16, 144, 3  # an epoch of four replicas has 12 steps


@dataclass(frozen=True)
class Settings:
    """What the numbers depend on."""

    ranks: int = 4
    steps: int = 200
    every: int = 10  # steps between two checkpoints
    pace: float = 0.005  # seconds that a step takes besides its computing
    strikes: int = 3
    stopped: float = 2.0  # seconds after which a stopped rank is taken for lost
    longest: float = 1.0  # seconds of a delay, or of a full disk
    pause: float = 0.1  # seconds before the ranks start again after a failure


def module() -> nn.Module:
    """An MLP with dropout, of about 600 parameters."""
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.2), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)
    ).double()  # fmt: skip


def samples() -> torch.Tensor:
    """What it is trained on: the same everywhere."""
    return torch.randn(
        SAMPLES, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )


class DDP:
    """DistributedDataParallel: started again, it needs its buckets and each rank's random state."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model, own = self.wrapped(module())
        torch.manual_seed(100 + dist.get_rank())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        sampler = DistributedSampler(SAMPLES, dist.get_world_size(), dist.get_rank())
        data: Any = (
            samples()
        )  # a tensor has a length and gives samples by number: all that is asked of a dataset
        self.loader = ResumableLoader(data, sampler, BATCH)
        self.state = TrainingState.of(
            self.model, self.optimizer, shared={"data": self.loader}, own=own
        )

    def wrapped(self, module: nn.Module) -> tuple[nn.Module, dict[str, Any]]:
        """And what a rank has of its own."""
        model = DistributedDataParallel(module, bucket_cap_mb=0.002)
        return model, {"random": RandomStates(), "buckets": BucketLayout(model.reducer)}

    def step(self, number: int) -> None:
        """Forward, backward, update. number: from 1 on."""
        self.loader.set_epoch((number - 1) * BATCH * dist.get_world_size() // SAMPLES)
        x = next(iter(self.loader))
        (self.model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Virtual:
    """VirtualRanks: the same bits on any number of ranks."""

    def __init__(self, virtual: int) -> None:
        torch.manual_seed(0)
        self.model = VirtualRanks(module(), virtual)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.virtual, self.data = virtual, samples()
        self.state = TrainingState.of(
            self.model, self.optimizer, shared={"draws": self.model.states}
        )

    def step(self, number: int) -> None:
        """Each virtual rank has its own samples of each step."""
        first = (number - 1) * BATCH * self.virtual
        places = {
            v: [(first + BATCH * v + i) % SAMPLES for i in range(BATCH)] for v in self.model.mine
        }
        self.model.backward(lambda v: self._loss(self.data[places[v]]))
        self.optimizer.step()

    def _loss(self, x: torch.Tensor) -> torch.Tensor:
        return (self.model(x) - x.sum(1, keepdim=True)).square().mean()


def train(folder: str, what: str, settings: Settings) -> str:
    """One rank's whole training, from the newest checkpoint on: a digest of the weights and of what momentum holds."""
    with Preemption() as preemption:  # first of all: before its block the signal does nothing
        run: DDP | Virtual = DDP() if what == "DDP" else Virtual(settings.ranks)
        checkpoints = Checkpoints(folder)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = checkpoints.latest()
        for warning in caught:
            run_log.tell(str(warning.message).replace(folder, "checkpoints"))
        for number in range((run.state.load(found) if found else 0) + 1, settings.steps + 1):
            began = time.monotonic()
            run.step(number)
            time.sleep(settings.pace)
            if dist.get_rank() == 0:
                run_log.tell_step(number, began)
            leaves = preemption.agreed(number)
            if leaves or number % settings.every == 0:
                save(checkpoints, number, run.state)
            if leaves:
                preemption.leave()
    return digest([run.model.state_dict(), run.optimizer.state_dict()])


def save(checkpoints: Checkpoints, step: int, state: TrainingState) -> None:
    """Where the disk is full the run goes on: the checkpoint before is as it was, and the next save may succeed."""
    try:
        checkpoints.save(step, state.snapshot(), state.about())
    except NotSaved as error:
        if dist.get_rank() == 0:
            why = (
                str(error.__cause__).splitlines()[0].replace(str(checkpoints.folder), "checkpoints")
            )
            run_log.tell(f"goes on without a checkpoint after step {step}: {why}")


def recovery_of(
    folder: Path, what: str, seed: int, settings: Settings, function: Any = train
) -> Recovery[str]:
    """What keeps a training going, in a folder of its own."""
    draw = random.Random(f"sizes {seed}")
    sizes = [draw.randrange(2, settings.ranks + 1) for _ in range(100)]

    def start(size: int, hear: Any) -> Any:
        return launch(
            function, size, str(folder), what, settings, wait=False, timeout=None, on_message=hear
        )

    return Recovery(
        start,
        folder,
        settings.ranks if what == "DDP" else lambda number: sizes[number - 1] if number > 1 else settings.ranks,
        Limits(fruitless=10, pause=settings.pause),
        Deadline(settings.stopped),
    )  # fmt: skip


def what_of(seed: int) -> str:
    """Which training a seed has."""
    return WHAT[seed % 2]


def undisturbed(settings: Settings) -> dict[str, Any]:
    """Of each training the end of a run that nobody disturbs, and the time of the last one."""
    bits = {}
    for what in WHAT:
        with tempfile.TemporaryDirectory() as folder:
            recovery = recovery_of(Path(folder) / "checkpoints", what, 0, settings)
            (bits[what],) = set(recovery.run())
            good = recovery.goodput
    return {"seconds": round(good.seconds, 3), "useful": round(good.useful, 3), "bits": bits}


def disturbed(settings: Settings, seed: int, bits: dict[str, str]) -> dict[str, Any]:
    """A run with the monkey."""
    what = what_of(seed)
    with tempfile.TemporaryDirectory() as folder:
        recovery = recovery_of(Path(folder) / "checkpoints", what, seed, settings)
        strikes = plan(seed, settings.steps, settings.strikes)
        with (
            Monkey(recovery, strikes, seed, settings.longest) as monkey,
            redirect_stdout(StringIO()),
        ):
            run = recovery.run()
        report = Report.of(monkey)
    return {
        "what": what,
        "same": set(run) == {bits[what]},
        **asdict(report),
        "log": str(recovery.log).splitlines(),
    }
