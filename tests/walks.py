"""How many Python calls a collective, its messages and a pipeline's step are: `python -m tests.walks` prints the table.

Calls are counted by sys.setprofile in the thread that makes them, on rank 0, the third time: what is made once (a
group's channel, a worker) is not among them. A call is a Python function that is entered, or a generator that goes on.
Those in dtcourse/ are counted, and those in all files, so that work which moves into contextlib counts as before.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

import dtcourse
from dtcourse import launch
from dtcourse.collectives import ring, traffic
from dtcourse.pipeline_parallel.engine import Pipeline
from dtcourse.pipeline_parallel.schedules import one_f_one_b

HERE = str(Path(dtcourse.__file__).parent)


class Walk(NamedTuple):
    """The calls of one thread. ours: those in dtcourse/; files: of dtcourse/, by how many calls were in each."""

    ours: int
    all: int
    files: dict[str, int]
    functions: dict[str, int]


def walk(work: Callable[[], Any]) -> Walk:
    """Counts the Python calls of `work`, in this thread."""
    functions: Counter[Any] = Counter()

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            functions[frame.f_code] += 1

    collects = gc.isenabled()
    gc.disable()  # what dies in a collection may call back
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        if collects:
            gc.enable()
    del functions[work.__code__]
    ours = {code: n for code, n in functions.items() if code.co_filename.startswith(HERE)}
    files: Counter[str] = Counter()
    names: Counter[str] = Counter()
    for code, n in ours.items():
        file = code.co_filename.removeprefix(HERE + "/")
        files[file] += n
        names[f"{file}:{code.co_qualname}"] += n
    return Walk(sum(ours.values()), functions.total(), dict(files), dict(names))


def of_all() -> dict[str, Walk]:
    """All walks of this rank of four; the pipeline and the small ring are ranks 0 and 1 alone."""
    x, pair, small = torch.ones(8), dist.new_group([0, 1]), dist.get_rank() < 2
    works: dict[str, Callable[[], Any]] = {"ring, 4 ranks": lambda: ring.all_reduce(x)}
    if small:
        works["ring, 2 ranks"] = lambda: ring.all_reduce(x, group=pair)
        pipeline = Pipeline(
            [nn.Linear(4, 4)], one_f_one_b(2, 2), nn.functional.mse_loss, group=pair
        )
        batch, target = torch.ones(4, 4), torch.zeros(4, 4)
        works["1F1B step, 2 ranks"] = lambda: pipeline.step(batch, target)
    found = {}
    for name, work in works.items():
        work()
        work()
        found[name] = walk(work)
    if small:  # somebody begins to count: the channel hears of it at its next message
        with traffic.counting():
            found["ring, 2 ranks, counted"] = walk(works["ring, 2 ranks"])
    return found


def of_backend() -> Walk:
    """dist.all_reduce of 8 floats where the ring is the backend."""
    x = torch.ones(8)
    for _ in range(2):
        dist.all_reduce(x)
    return walk(lambda: dist.all_reduce(x))


if __name__ == "__main__":
    table = launch(of_all, 4)[0]
    table["ring as backend, 4 ranks"] = launch(of_backend, 4, backend="ring")[0]
    for name, found in table.items():
        print(
            f"{name:24} {found.ours:5} in dtcourse/, {found.all:5} in all, {len(found.files):3} files"
        )
        if "-v" in sys.argv:
            for what, n in sorted(found.functions.items(), key=lambda one: -one[1]):
                print(f"    {n:4} {what}")
