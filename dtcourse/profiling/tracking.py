"""Experiment tracking without a server: what a run was, and what came out of it, in a folder of local files.

    with Experiment("runs", "ddp-lr-0.1", parameters={"lr": 0.1}) as run:      # on every rank
        for step in range(100):
            run.log(step, loss=loss.item(), tokens_per_second=speed)
        run.model(model, step=100)                                           # version 1 of this run's model
        run.artifact("profile.json")

    record = Record.load("runs/ddp-lr-0.1")
    record.metrics["loss"][0]           # {"step": 0, "mean": ..., "min": ..., "max": ..., "ranks": 4}

Files: run.json (parameters, environment, state, metrics over the ranks, artefacts, model versions), rank-0.json, ...
(each rank's own metrics), artifacts/, models/. Each is written beside its place and then moved there, so a file is
whole or it is not there. Parameters must be the same on all ranks, or the record would be of no run at all.

The ranks come together when an experiment begins and when it ends well. A rank that fails writes its own file and
asks nobody: run.json then stays "running", and the ranks' files say what each of them got to (`Record.failed`).
`tracking_mlflow.py` takes a record into MLflow.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.profiling.tracking_files import Record, environment, over_ranks, write

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. /-]{0,199}")


class Experiment:
    """One run, written by all ranks of the default group, or by one process. A context, on every rank.

    folder:     where runs lie
    name:       of this run: a new folder in it
    parameters: what it was started with: numbers, texts, booleans, None, and lists of these

    Raises ValueError, on every rank, for a name that is taken or no name, and for parameters that are none or differ
    between ranks.
    """

    def __init__(
        self, folder: str | Path, name: str, *, parameters: Mapping[str, Any] | None = None
    ) -> None:
        together = dist.is_initialized() and dist.get_world_size() > 1
        self.rank = dist.get_rank() if together else 0
        self.ranks = dist.get_world_size() if together else 1
        self.path, self._name = Path(folder) / str(name), str(name)
        self.parameters = dict(parameters or {})
        self._metrics: dict[str, dict[int, float]] = defaultdict(dict)
        self._artifacts: dict[str, dict[str, Any]] = {}
        self._models: list[dict[str, Any]] = []
        self._over = False
        self._begin()

    def _begin(self) -> None:
        problem = self._problem()
        # Where something is wrong on one rank, all of them have to hear of it, or the others would wait for it.
        mine = {} if problem else {"name": self.path.name, **self.parameters}
        everyone = _gathered((problem, mine), self.ranks)
        first = everyone[0][1]
        for rank, (said, theirs) in enumerate(everyone):
            if said:
                raise ValueError(said if rank == self.rank else f"rank {rank}: {said}")
            for key in {**first, **theirs}:
                if repr(first.get(key)) != repr(theirs.get(key)):
                    raise ValueError(
                        f"name and parameters are the whole run's, and rank {rank} has {key}={theirs.get(key)!r} "
                        f"where rank 0 has {first.get(key)!r}"
                    )
        self.environment, self.began = environment(self.ranks), _now()
        if self.rank == 0:
            self.path.mkdir(parents=True)
            self._write("running", {})
        _gathered(None, self.ranks)  # the folder is there

    def _problem(self) -> str:
        """What is wrong with what this rank was given; empty where nothing is."""
        try:
            _checked(self._name, "a run's name", slashes=False)
        except ValueError as error:
            return str(error)
        wrong = [said for key, value in self.parameters.items() if (said := _wrong(key, value))]
        if not wrong and self.rank == 0 and self.path.exists():
            where = self.path.parent
            return f"there is a run {self.path.name!r} in {where} already: give another name"
        return "; ".join(wrong)

    def log(self, step: int, **metrics: float) -> None:
        """This rank's numbers of one step. NaN and infinity are kept: a run that diverged shows it.

        Raises ValueError for what is no number, a negative step, or a second value for the same step.
        """
        self._require_open()
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise ValueError(f"a step is a whole number, 0 or more; got {step!r}")
        for name, value in metrics.items():
            if isinstance(value, torch.Tensor) and value.numel() == 1:
                value = value.item()
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"a metric is a number; got {name}={value!r}")
            if step in self._metrics[name]:
                raise ValueError(
                    f"{name} of step {step} is logged already, as {self._metrics[name][step]}; got {value}"
                )
            self._metrics[name][step] = float(value)

    def artifact(self, file: str | Path, name: str | None = None) -> None:
        """Keeps a copy of a file, with its checksum. name: under artifacts/; by default the file's own.

        Each rank keeps what it is given; two ranks give two names. Raises ValueError for no file, or a name twice.
        """
        self._require_open()
        file = Path(file)
        name = _checked(file.name if name is None else name, "an artefact's name", slashes=True)
        if not file.is_file():
            raise ValueError(f"there is no file {file}")
        target = self.path / "artifacts" / name
        if target.exists():
            raise ValueError(f"the run has an artefact {name!r} already")
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f"{target.name}.partial-{self.rank}")
        shutil.copyfile(file, partial)
        self._artifacts[name] = {"bytes": partial.stat().st_size, "sha256": _sha256(partial)}
        partial.replace(target)

    def model(self, model: nn.Module | Mapping[str, Any], *, step: int, name: str = "model") -> int:
        """Keeps a state dict as this model's next version, and returns the number: 1, 2, ... On rank 0; on the others
        nothing is written, and the number is the same. A sharded model's state is gathered before.
        """
        self._require_open()
        name = _checked(name, "a model's name", slashes=False)
        version = 1 + sum(each["name"] == name for each in self._models)
        entry = {"name": name, "version": version, "step": step}
        if self.rank == 0:
            target = self.path / "models" / f"{name}-{version}.pt"
            target.parent.mkdir(exist_ok=True)
            partial = target.with_name(target.name + ".partial")
            torch.save(model.state_dict() if isinstance(model, nn.Module) else dict(model), partial)
            entry |= {"file": f"models/{target.name}", "sha256": _sha256(partial)}
            partial.replace(target)
        self._models.append(entry)
        return version

    def finish(self) -> None:
        """Writes everything down. Every rank calls it; leaving the context does, where nothing was raised."""
        self._require_open()
        self._own_file(None)
        found = _gathered((dict(self._metrics), self._artifacts), self.ranks)
        self._over = True
        for _, artifacts in found:
            self._artifacts |= artifacts
        if self.rank == 0:
            self._write("finished", over_ranks([metrics for metrics, _ in found]))

    def __enter__(self) -> Experiment:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None and not self._over:
            self.finish()
        elif error is not None:
            self._own_file(f"{type(error).__name__}: {error}")
            self._over = True

    def _require_open(self) -> None:
        if self._over:
            raise ValueError(f"the run {self.path.name!r} is over: nothing is added to it")

    def _own_file(self, error: str | None) -> None:
        content = {"rank": self.rank, "error": error, "metrics": self._metrics}
        write(self.path / f"rank-{self.rank}.json", content)

    def _write(self, state: str, metrics: dict[str, Any]) -> None:
        content = {
            "name": self.path.name,
            "state": state,
            "began": self.began,
            "ended": None if state == "running" else _now(),
            "ranks": self.ranks,
            "parameters": self.parameters,
            "environment": self.environment,
            "metrics": metrics,
            "artifacts": self._artifacts,
            "models": self._models,
        }
        write(self.path / Record.FILE, content)


def _gathered(mine: Any, ranks: int) -> list[Any]:
    """Every rank's, on every rank."""
    if ranks == 1:
        return [mine]
    found: list[Any] = [None] * ranks
    dist.all_gather_object(found, mine)
    return found


def _wrong(key: Any, value: Any) -> str:
    simple = value is None or isinstance(value, bool | int | float | str)
    if isinstance(value, list | tuple):
        simple = all(not _wrong(key, each) for each in value)
    if isinstance(key, str) and key and simple:
        return ""
    return f"a parameter is a number, a text, a boolean, None or a list of these; got {key!r}: {value!r}"


def _checked(name: str, what: str, *, slashes: bool) -> str:
    parts = name.split("/")
    inside = slashes or len(parts) == 1
    if not (inside and _NAME.fullmatch(name)) or "" in parts or ".." in parts:
        raise ValueError(f"{what} has letters, digits, and . _ - inside its folder; got {name!r}")
    return name


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
