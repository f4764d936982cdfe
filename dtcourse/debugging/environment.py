"""What a run ran in, as data: to be written beside its results, and compared with another run's, or over the ranks.

    record = environment()
    save_environment("run-1/environment.json")
    print(compare_environments("run-1/environment.json", "run-2/environment.json"))
    # torch: 2.12.0 and 2.13.0
    # OMP_NUM_THREADS: 1 and not set

    print(environments_differ())             # in the ranks: rank 2 has threads 4, where ranks 0, 1 and 3 have 1

Of the environment's variables those are kept that say how a run computes and talks (their names begin as in VARIABLES),
and no others: there are passwords among them. What is to differ from rank to rank (RANK, LOCAL_RANK, the process's
number) is not compared.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dtcourse import device
from dtcourse.debugging.sentences import ranks_in_words
from dtcourse.parameters.cuts import Group

VARIABLES = (
    "CUBLAS_", "CUDA_", "DTCOURSE_", "GLOO_", "KMP_", "MKL_", "NCCL_", "OMP_", "OPENBLAS_", "PYTHONHASHSEED",
    "PYTORCH_", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS", "TORCH_", "TORCHELASTIC_", "TORCHINDUCTOR_", "WORLD_SIZE",
)  # fmt: skip
PACKAGES = ("dtcourse", "numpy", "torch", "torchvision", "transformers", "triton")
# Another on each rank, or in each run, of two that are the same.
_OF_RANK = (
    "DTCOURSE_DEVICE",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_ERROR_FILE",
    "NCCL_ASYNC_ERROR_HANDLING",
)
NOT_SET = "not set"

Environment = dict[str, Any]


def environment(folder: str | Path = ".") -> Environment:
    """What this process runs in: a flat dict of what can be written as JSON.

    folder: of the program, whose git commit is asked for
    """
    found: Environment = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "host": platform.node(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_bytes": _memory(),
        "devices": device.names(),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "default_dtype": str(torch.get_default_dtype()),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "backend": dist.get_backend() if dist.is_initialized() else "none",
        "world_size": dist.get_world_size() if dist.is_initialized() else 1,
        "command": Path(sys.argv[0]).name if sys.argv else "",
        **_git(Path(folder)),
    }
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    kept = {k: v for k, v in os.environ.items() if k.startswith(VARIABLES) and k not in _OF_RANK}
    return found | dict(sorted(kept.items()))


def save_environment(file: str | Path, folder: str | Path = ".") -> Environment:
    """Writes it, all or nothing, and returns it."""
    file, found = Path(file), environment(folder)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    partial.write_text(json.dumps(found, indent=1) + "\n")
    partial.replace(file)
    return found


class Differences(dict[str, tuple[Any, Any]]):
    """What differs between two environments, by name: (one's, the other's). Empty, and so False, where nothing does."""

    def __str__(self) -> str:
        if not self:
            return "Nothing differs."
        return "\n".join(f"{name}: {one} and {other}" for name, (one, other) in self.items())


def compare_environments(
    one: Environment | str | Path, other: Environment | str | Path
) -> Differences:
    """What differs between two records, or between the files that they were written to.

    Raises ValueError for a file that is no record.
    """
    first, second = _read(one), _read(other)
    names = [*first, *(name for name in second if name not in first)]
    both = {name: (first.get(name, NOT_SET), second.get(name, NOT_SET)) for name in names}
    return Differences({name: pair for name, pair in both.items() if pair[0] != pair[1]})


def environments_differ(group: Group = None, folder: str | Path = ".") -> str:
    """What differs over the ranks of a group, a line each; empty where nothing does. A collective.

    Where most ranks have the same, those that have not are named. The name of the machine is not compared.
    """
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, environment(folder), group=group)
    ranks, lines = dist.get_process_group_ranks(group), []
    for name in dict.fromkeys(name for theirs in everyone for name in theirs if name != "host"):
        had = {rank: str(e.get(name, NOT_SET)) for rank, e in zip(ranks, everyone, strict=True)}
        (usual, most), *others = Counter(had.values()).most_common()
        if not others:
            continue
        if most == others[0][1]:
            said = [(v, [r for r in ranks if had[r] == v]) for v in dict.fromkeys(had.values())]
            lines.append(f"{name}: " + "; ".join(f"{v} on {ranks_in_words(of)}" for v, of in said))
            continue
        for value, _ in others:
            odd = [r for r in ranks if had[r] == value]
            rest = [r for r in ranks if had[r] == usual]
            have = "has" if len(odd) == 1 else "have"
            lines.append(
                f"{ranks_in_words(odd)} {have} {name} {value}, where {ranks_in_words(rest)} "
                f"{'has' if len(rest) == 1 else 'have'} {usual}"
            )
    return "\n".join(lines)


def _read(given: Environment | str | Path) -> Environment:
    if isinstance(given, dict):
        return given
    try:
        found = json.loads(Path(given).read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{str(given)!r} is no record of an environment: {error}") from None
    if not isinstance(found, dict) or "torch" not in found:
        raise ValueError(
            f"{str(given)!r} is no record of an environment: write one with save_environment"
        )
    return found


def _git(folder: Path) -> Environment:
    """The commit, and whether files differ from it; nothing where there is no git or no repository."""

    def asked(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", *words], cwd=folder, capture_output=True, text=True, check=False, timeout=20
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = asked("rev-parse", "HEAD")
    if commit is None:
        return {}
    changed = asked("status", "--porcelain", "--untracked-files=no") or ""
    return {"commit": commit, "changed_files": len(changed.splitlines())}


def _processor() -> str:
    with_names = Path("/proc/cpuinfo")
    if with_names.exists():
        for line in with_names.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0
