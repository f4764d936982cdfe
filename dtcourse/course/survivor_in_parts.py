"""The survivor (survivor.py) with its state in parts: a lost rank is replaced from a neighbour's memory, or a file.

Four workers of an elastic job train the same MLP, fully sharded. After each step every rank's neighbour keeps a copy of
its state (peer_copies.py), and every so many steps all write a checkpoint. A lost rank's successor gets its state from
the copy. Where a rank is lost together with the neighbour that kept its copy, all go back to the newest checkpoint.
In the end all bits are those of a run that nobody disturbed, on each rank.

    bits = undisturbed(Settings())["bits"]
    disturbed(Settings(), seed=7, bits=bits)["same"]
"""

from __future__ import annotations

import tempfile
import time
import warnings
from contextlib import redirect_stdout
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import nn

from dtcourse.course.survivor import DDP, Settings, save
from dtcourse.fault_tolerance import Checkpoints, Deadline, RandomStates, RankState, run_log
from dtcourse.fault_tolerance.chaos import FROM_MEMORY, Monkey, Report, plan
from dtcourse.fault_tolerance.elastic import Elastic, ElasticJob, ElasticRecovery
from dtcourse.fault_tolerance.fingerprints import digest
from dtcourse.launch import send_message
from dtcourse.sharding import fully_shard

WHAT = "peer copies"
MEMORY, FILE = "memory", "a file"


class WentOn(NamedTuple):
    """What rank 0 tells once in each generation after the first: after which step all go on, and from where."""

    step: int
    source: str


class InParts(DDP):
    """Fully sharded: no rank has all of the state."""

    def wrapped(self, module: nn.Module) -> tuple[nn.Module, dict[str, Any]]:
        """And what a rank has of its own."""
        return fully_shard(module), {"random": RandomStates()}

    def __init__(self) -> None:
        super().__init__()
        part = RankState(self.model, self.optimizer, {"data": self.loader}, self.state.own)
        self.state_dict, self.load_state_dict = part.state_dict, part.load_state_dict


def train(elastic: Elastic, folder: str, settings: Settings) -> str:
    """One worker's whole life: a digest of its rank's part of the weights, of momentum, and of its random state."""
    checkpoints: list[Checkpoints] = []
    from_where: list[str] = []

    def build() -> InParts:
        run = InParts()
        checkpoints[:] = [Checkpoints(folder)]
        from_where[:] = [MEMORY]
        return run

    def load(run: InParts) -> int:
        from_where[:] = [FILE]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = checkpoints[0].latest()
        for warning in caught:
            run_log.tell(str(warning.message).replace(folder, "checkpoints"))
        return run.state.load(found) if found else 0

    def step(run: InParts, number: int) -> None:
        first = dist.get_rank() == 0
        if first and from_where and elastic.generation:
            send_message(WentOn(number - 1, from_where[0]))
        from_where.clear()
        began = time.monotonic()
        run.step(number)
        time.sleep(settings.pace)
        if first:
            run_log.tell_step(number, began)
        # A copy is taken after the save: who dies between them leaves a checkpoint that is newer than any memory.
        if number % settings.every == 0 and number not in checkpoints[0].steps():
            save(checkpoints[0], number, run.state)

    run = elastic.run(build, step, settings.steps, load=load, in_parts=True)
    return digest(run.state_dict()) if run is not None else ""


def recovery_of(folder: Path, settings: Settings, went_on: list[WentOn]) -> ElasticRecovery:
    """What keeps the training going, in a folder of its own. went_on: gets what the workers tell"""

    def begin(hear: Any) -> ElasticJob:
        size = settings.ranks
        return ElasticJob(
            train, size, str(folder), settings,
            least=size, most=size, replacements=100, timeout=None, on_message=hear,
        )  # fmt: skip

    def hear(worker: int, message: Any) -> None:
        went_on.append(message)
        recovery.log.add(f"worker {worker}", f"goes on after step {message.step} from {message.source}")  # fmt: skip

    recovery = ElasticRecovery(begin, folder, Deadline(settings.stopped), hear)
    return recovery


def undisturbed(settings: Settings) -> dict[str, Any]:
    """The end of a run that nobody disturbs, by rank, and its time."""
    with tempfile.TemporaryDirectory() as folder:
        recovery = recovery_of(Path(folder) / "checkpoints", settings, [])
        bits = recovery.run()
    good = recovery.goodput
    return {"seconds": round(good.seconds, 3), "useful": round(good.useful, 3), "bits": bits}


def disturbed(settings: Settings, seed: int, bits: list[str]) -> dict[str, Any]:
    """A run with the monkey. memory, file: how often all went on from there"""
    went_on: list[WentOn] = []
    with tempfile.TemporaryDirectory() as folder:
        recovery = recovery_of(Path(folder) / "checkpoints", settings, went_on)
        strikes = plan(seed, settings.steps, settings.strikes, FROM_MEMORY)
        with (
            Monkey(recovery, strikes, seed, settings.longest) as monkey,
            redirect_stdout(StringIO()),
        ):
            run = recovery.run()
        report = Report.of(monkey)
    sources = [one.source for one in went_on]
    return {
        "what": WHAT,
        "same": run == bits,
        "memory": sources.count(MEMORY),
        "file": sources.count(FILE),
        **asdict(report),
        "log": str(recovery.log).splitlines(),
    }
