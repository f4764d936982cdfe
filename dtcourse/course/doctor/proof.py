"""Two minutes that prove an installation: each part does once what the course does all the time.

The launch itself is training.two_ranks, with which every other examination but a quick one ends.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dtcourse.course.doctor.findings import Finding

if TYPE_CHECKING:
    import torch

LESSON = "12"  # the one that runs for the fewest seconds
EXERCISE = "02"  # the first one of this lesson
LIMIT = 300.0  # seconds for a launch, a cell or an answer
ELEMENTS = 1_000


def collective() -> Iterator[Finding]:
    """Our ring against gloo, on numbers whose sums are exact."""

    def compared() -> str:
        from dtcourse.launch import launch

        wrong = sum(launch(_sums_that_differ, 2, timeout=LIMIT))
        _require(wrong == 0, f"{wrong} of {2 * ELEMENTS} sums differ from gloo's")
        return f"{ELEMENTS:,} sums of two ranks are gloo's"

    yield _timed("collective", compared)


def checkpoint() -> Iterator[Finding]:
    """Written by two ranks in the middle of a run, and read by one that goes on as they do."""

    def written_and_read() -> str:
        from dtcourse.launch import launch

        with tempfile.TemporaryDirectory(prefix="dtcourse-doctor-") as folder:
            went_on = launch(_write, 2, folder, timeout=LIMIT)[0]
            resumed = launch(_read, 1, folder, timeout=LIMIT)[0]
        _require(resumed == went_on, f"after it the loss is {resumed}, and was {went_on}")
        return "written by two ranks, read by one, which goes on bit for bit"

    yield _timed("checkpoint", written_and_read)


def lesson() -> Iterator[Finding]:
    """Executed from top to bottom, in a kernel."""

    def executed() -> str:
        from dtcourse.course import execute, places

        path = _of("lessons", LESSON, places.notebooks("lessons"))
        with tempfile.TemporaryDirectory(prefix="dtcourse-doctor-") as folder:
            error = execute.run(path, Path(folder, path.name), timeout=LIMIT).error
        _require(error is None, f"{path.name}: {error}")
        return f"every cell of {path.name} ran"

    yield _timed("lesson", executed)


def exercise() -> Iterator[Finding]:
    """Its solution has all points, and the notebook that students begin with has none."""

    def judged() -> str:
        from dtcourse.course import checking, places
        from dtcourse.course import notebook as nbfile

        wanted = checking.exercises_of(EXERCISE)[:1]
        solved, begun = (
            checking.check_notebook(
                nbfile.read(_of(kind, EXERCISE, places.notebooks(kind))), wanted, limit=LIMIT
            )[0]
            for kind in ("solutions", "exercises")
        )
        said = solved.refused or solved.unfinished or solved.unjudged
        said = said or "; ".join(one.sentence for one in solved.verdicts if not one.passed)
        _require(solved.passed, f"the solution of {wanted[0].name} does not pass: {said}")
        _require(
            bool(begun.unfinished), f"{wanted[0].name} counts as attempted before anybody wrote it"
        )
        return f"{wanted[0].name} is judged: its solution passes, and nothing written does not"

    yield _timed("exercise", judged)


def _timed(name: str, part: Callable[[], str]) -> Finding:
    """What came of a part, and its seconds; whatever it raises is something to repair."""
    began = time.monotonic()
    try:
        found = part()
    except Exception as error:
        said = str(error).strip() or type(error).__name__
        return Finding(
            name,
            "problem",
            said.splitlines()[0],
            "the lesson in JupyterLab, or `dtcourse check`, shows the whole message",
        )
    return Finding(name, "ok", f"{found} ({time.monotonic() - began:.0f} s)")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _of(kind: str, number: str, known: dict[str, Path]) -> Path:
    if number not in known:
        raise ValueError(f"{kind}/ has no notebook {number}: the course's repository is not whole")
    return known[number]


# --- in ranks -----------------------------------------------------------------------------------------------------


def _sums_that_differ() -> int:
    import torch
    import torch.distributed as dist

    from dtcourse.collectives import ring

    mine = torch.arange(ELEMENTS, dtype=torch.float64) * (dist.get_rank() + 1)
    theirs = mine.clone()
    ring.all_reduce(mine)
    dist.all_reduce(theirs)
    return int((mine != theirs).sum())


def _write(folder: str) -> float:
    from dtcourse import checkpoint

    model, optimizer, step = _training(seed=0)
    step()
    checkpoint.save(folder, model, optimizer)
    return step()


def _read(folder: str) -> float:
    from dtcourse import checkpoint

    model, optimizer, step = _training(seed=1)
    checkpoint.load(folder, model, optimizer)
    return step()


def _training(
    seed: int,
) -> tuple[torch.nn.Module, torch.optim.Optimizer, Callable[[], float]]:
    """A model, its optimizer, and a step of training, which gives the loss after it; the same on every rank."""
    import torch

    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    x = torch.linspace(-1, 1, 32).reshape(8, 4)

    def step() -> float:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        loss = model(x).square().mean().item()
        assert math.isfinite(loss)
        return loss

    return model, optimizer, step
