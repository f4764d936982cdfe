"""Ours against PyTorch's, pair by pair: below 1.0 ours is faster.

The benchmarks let steps alternate (ours, PyTorch's, ours, ...), so a machine whose speed drifts does the same to both,
and report the median and the quartiles of the pairs' ratios.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from dtcourse import device

Figure = TypeVar("Figure")

# A step's parts, of what `timed_step` returns.
PARTS = {"step": slice(0, 2), "forward and backward": slice(0, 1), "optimizer": slice(1, 2)}
WARM_UP = 2  # pairs that are left out: in the first steps buckets are built, shapes and the order of use learned


def timed_step(
    loss: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer
) -> tuple[float, float]:
    """One training step, begun by all ranks together: seconds of forward and backward, and of the optimizer."""
    dist.barrier()
    start = time.perf_counter()
    loss().backward()
    device.synchronize()
    middle = time.perf_counter()
    optimizer.step()
    optimizer.zero_grad()
    device.synchronize()
    return middle - start, time.perf_counter() - middle


def in_turns(steps: Mapping[str, Callable[[], Figure]], pairs: int) -> dict[str, list[Figure]]:
    """What each of `steps` returns, `pairs` times after the warm-up: all of them in turns, and in turns which is first.

    Two turns there and back, then from the next but one on: of three each of their orders. So none always comes after
    the same other one, which leaves its own tensors in the cache.
    """
    found: dict[str, list[Figure]] = {name: [] for name in steps}
    names = list(steps)
    for turn in range(WARM_UP + pairs):
        first = turn // 2 * 2 % len(names)
        order = names[first:] + names[:first]
        for name in reversed(order) if turn % 2 else order:
            found[name].append(steps[name]())
    return {name: figures[WARM_UP:] for name, figures in found.items()}


def over_ranks(
    run: Iterable[Mapping[str, Sequence[Figure]]], by: Callable[[Sequence[Figure]], float]
) -> dict[str, list[float]]:
    """By name and step, one figure for all ranks: `by` of what they measured.
    A step's time is that of its slowest rank.
    """
    ranks = list(run)
    return {
        name: [by(step) for step in zip(*(rank[name] for rank in ranks), strict=True)]
        for name in ranks[0]
    }


def slowest(run: Iterable[Mapping[str, Sequence[Any]]], part: slice) -> dict[str, list[float]]:
    """By name, the seconds of a part of each step (PARTS) on the rank where it took longest."""
    return over_ranks(run, lambda ranks: max(sum(times[part]) for times in ranks))


def ratio(ours: Sequence[float], torchs: Sequence[float], digits: int = 3) -> dict[str, Any]:
    """Median and quartiles of ours over PyTorch's, pair by pair."""
    ratios = [a / b for a, b in zip(ours, torchs, strict=True)]
    low, middle, high = (round(one, digits) for one in statistics.quantiles(ratios, n=4))
    return {"ratio": middle, "quartiles": [low, high]}


def in_words(found: Mapping[str, Any]) -> str:
    """`ratio`'s answer, for a line of output."""
    low, high = found["quartiles"]
    return f"{found['ratio']:.2f} (quartiles {low:.2f} to {high:.2f})"


def milliseconds(seconds: Mapping[str, Sequence[float]], digits: int = 1) -> dict[str, float]:
    """By name, the median step."""
    return {name: round(statistics.median(each) * 1e3, digits) for name, each in seconds.items()}


def steps_compared(
    run: Iterable[Mapping[str, Sequence[Any]]], each_is: str = "step"
) -> dict[str, Any]:
    """The report of a launch whose ranks return `in_turns` of `timed_step`s named "ours" and "torch";
    prints it as well.

    each_is: what was timed, where it is more than a step
    """
    ranks = list(run)
    report: dict[str, Any] = {"milliseconds": milliseconds(slowest(ranks, PARTS["step"]))}
    for name, part in PARTS.items():
        seconds = slowest(ranks, part)
        report[name] = ratio(seconds["ours"], seconds["torch"])
        print(f"{each_is if name == 'step' else name:22s} {in_words(report[name])}")
    for kind, each in report["milliseconds"].items():
        print(f"{kind:22s} {each:.0f} ms per {each_is}")
    return report


def begin(what: str) -> dict[str, Any]:
    """A report's head, which says what is measured, when and where; prints what.
    Call it before anything is measured.
    """
    print(what, flush=True)
    return {"what": what, "date": datetime.date.today().isoformat(), "machine": machine()}


def machine() -> dict[str, Any]:
    """Where a report comes from, and what else the machine had to do when it began."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "device": device.names()[0] if device.is_gpu() else "CPU",
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def write(report: Mapping[str, Any], file: Path) -> None:
    """A results file, whole or as it was."""
    file.parent.mkdir(exist_ok=True)
    half = file.with_suffix(".partial")
    half.write_text(json.dumps(report, indent=1) + "\n")
    half.replace(file)
