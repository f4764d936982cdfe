"""The files of a tracked run: written whole or not at all, read back, and two runs compared."""

from __future__ import annotations

import json
import math
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from dtcourse import device

PACKAGES = ("dtcourse", "numpy", "torch")
SETTINGS = (
    "CUDA_VISIBLE_DEVICES",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "NCCL_",
    "GLOO_",
    "TORCH_",
)
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True)
class Record:
    """A run as it was written; see tracking.Experiment.

    metrics: by name a list of {"step", "mean", "min", "max", "ranks"}
    failed:  {rank: error} of the ranks that raised
    """

    FILE: ClassVar[str] = "run.json"

    path: Path
    name: str
    state: str  # "running" or "finished"
    began: str
    ended: str | None
    ranks: int
    parameters: dict[str, Any]
    environment: dict[str, Any]
    metrics: dict[str, list[dict[str, Any]]]
    artifacts: dict[str, dict[str, Any]]
    models: list[dict[str, Any]]
    failed: dict[int, str]

    @classmethod
    def load(cls, path: str | Path) -> Record:
        """Reads a run's folder. ValueError for a folder without a run."""
        path = Path(path)
        if not (path / cls.FILE).is_file():
            raise ValueError(f"there is no run in {path}: {cls.FILE} is missing")
        failed = {}
        for file in sorted(path.glob("rank-*.json")):
            own = read(file)
            if own["error"]:
                failed[own["rank"]] = own["error"]
        return cls(path=path, failed=failed, **read(path / cls.FILE))

    def own_metrics(self, rank: int) -> dict[str, dict[int, float]]:
        """What one rank logged: {name: {step: value}}. ValueError where it wrote nothing."""
        file = self.path / f"rank-{rank}.json"
        if not file.is_file():
            raise ValueError(
                f"rank {rank} of {self.name!r} has written nothing; the run had {self.ranks}"
            )
        metrics = read(file)["metrics"]
        return {name: {int(step): v for step, v in of.items()} for name, of in metrics.items()}

    def differences(self, other: Record) -> dict[str, tuple[Any, Any]]:
        """Parameters and environment in which two runs differ: {"lr": (0.1, 0.2)}; None where one has it not."""
        mine = {**self.environment, **self.parameters}
        theirs = {**other.environment, **other.parameters}
        return {
            key: (mine.get(key), theirs.get(key))
            for key in {**mine, **theirs}
            if mine.get(key) != theirs.get(key)
        }


def over_ranks(by_rank: list[Mapping[str, Mapping[int, float]]]) -> dict[str, list[dict[str, Any]]]:
    """Of each metric and step, mean, least and most over the ranks that logged it, and how many those were."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name in sorted({name for metrics in by_rank for name in metrics}):
        logged = [metrics[name] for metrics in by_rank if name in metrics]
        found[name] = []
        for step in sorted({step for steps in logged for step in steps}):
            values = [steps[step] for steps in logged if step in steps]
            broken = [value for value in values if math.isnan(value)]
            found[name].append({
                "step": step,
                "mean": broken[0] if broken else sum(values) / len(values),
                "min": broken[0] if broken else min(values),  # min() of NaN depends on the order
                "max": broken[0] if broken else max(values),
                "ranks": len(values),
            })  # fmt: skip
    return found


def environment(ranks: int) -> dict[str, Any]:
    """What the run ran in, flat: versions, machine, ranks, threads, and settings that change what libraries do."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "device": device.current().type,
        "gpus": device.names(),
        "ranks": ranks,
        "backend": dist.get_backend() if dist.is_initialized() else None,
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "program": Path(sys.argv[0]).name,
    }
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    found |= {key: value for key, value in os.environ.items() if key.startswith(SETTINGS)}
    return found


def write(path: Path, content: dict[str, Any]) -> None:
    """JSON, all or nothing. What JSON has no number for (NaN, infinity) is written as a text."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(_plain(content), indent=1, allow_nan=False))
    partial.replace(path)


def read(path: Path) -> dict[str, Any]:
    """What `write` wrote. ValueError for a file that is none of its."""
    try:
        return _numbers(json.loads(path.read_text()))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is no record of a run: {error}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"not finite": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}  # fmt: skip
    return value


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"not finite"}:
            return NOT_FINITE[value["not finite"]]
        return {key: _numbers(each) for key, each in value.items()}
    return [_numbers(each) for each in value] if isinstance(value, list) else value
