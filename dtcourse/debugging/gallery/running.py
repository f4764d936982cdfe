"""Runs a script's text on ranks, with every tool watching; brings back what each rank returned and each tool saw."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dtcourse.debugging.hang import Records, read_records, recorded_in
from dtcourse.debugging.unasked.watch import Watch, seen_by_all, watched
from dtcourse.launch import RankFailure, RankTimeout, deadlock, launch

TIMEOUT = 60.0
HANG = 4.0  # seconds for a script that is run to be seen hanging


@dataclass
class Outcome:
    """How a run ended.

    end:     "ended", "hangs" or "raised"
    results: of each rank what step() returned; empty where not all did
    seen:    by tool, what it saw on each rank; only of tools that have seen all ranks to their end
    records: the flight recorder's
    failure: what launch said
    """

    end: str
    results: list[Any] = field(default_factory=list)
    seen: dict[str, list[Any]] = field(default_factory=dict)
    records: Records = field(default_factory=Records)
    failure: str = ""


@contextmanager
def as_file(name: str, text: str) -> Iterator[Path]:
    """A script's text as a file in a folder of its own, which is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="gallery-") as folder:
        path = Path(folder).resolve() / name
        path.write_text(text)
        yield path


def run(
    file: Path,
    ranks: int,
    watches: Sequence[type[Watch]] = (),
    timeout: float = TIMEOUT,
    hangs: bool = False,
) -> Outcome:
    """Runs step() of a file on so many ranks, in a folder beside it, each of `watches` in each rank.

    hangs: whether to end a run before its timeout whose ranks wait for each other for ever, where the system shows that
           (launch/deadlock.py: Linux)
    """
    home = file.parent / f"on-{ranks}"
    (home / "work").mkdir(parents=True)
    outcome = Outcome("ended")
    looking_out = deadlock.found_early() if hangs else contextlib.nullcontext()
    try:
        with looking_out:
            outcome.results = list(
                launch(
                    _in_rank,
                    ranks,
                    str(file),
                    str(home),
                    list(watches),
                    device="cpu",
                    timeout=timeout,
                    env=recorded_in(home / "records"),
                )
            )
    except RankTimeout as hung:
        outcome.end, outcome.failure = "hangs", str(hung)
    except RankFailure as failed:
        outcome.end, outcome.failure = "raised", str(failed)
    with contextlib.suppress(ValueError):  # no rank has left one
        outcome.records = read_records(home / "records")
    outcome.seen = seen_by_all(home / "seen", watches, ranks)
    return outcome


def loaded(file: Path) -> Any:
    """The module that a file is."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None, "it ends in .py"
    assert spec.loader is not None, "it ends in .py"
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # where what it defines is looked for
    spec.loader.exec_module(module)
    return module


def reference_of(file: Path) -> Any:
    """What the script says is right, computed here; without its words and its random numbers."""
    import torch

    with contextlib.redirect_stdout(io.StringIO()), torch.random.fork_rng(devices=[]):
        return loaded(file).reference()


def _in_rank(file: str, home: str, watches: list[type[Watch]]) -> Any:
    os.chdir(Path(home) / "work")
    module = loaded(Path(file))
    with watched(Path(home) / "seen", watches):
        return module.step()
