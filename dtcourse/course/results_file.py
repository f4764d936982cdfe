"""A study's results file: every run by its name, with the settings, the machine, the date and the versions.

It is written after each run, all of it or nothing; a study that is called again goes on where it stopped. Here is also
what every study's command line has: --seeds, --budget, --out and the settings.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import torch

Settings = TypeVar("Settings")
Job = tuple[str, Callable[[], dict[str, Any]]]  # a run's name, and what measures it


def load(path: Path, what: str, **fixed: Any) -> dict[str, Any]:
    """The results so far, none if there is no file.

    what:  the study in a line
    fixed: what the runs depend on, by name: the file's format, settings, ...

    Raises ValueError where the file was made with others.
    """
    if not path.exists():
        return {"what": what, **fixed, "runs": {}}
    found = json.loads(path.read_text())
    for part, now in fixed.items():
        if found.get(part) != now:
            raise ValueError(
                f"{path} was measured with {part} {found.get(part)}, and this run has {now}: "
                "give the same ones to go on with it, or another --out"
            )
    return found | {"what": what}  # words, on which no run depends


def save(results: dict[str, Any], path: Path, seeds: int) -> None:
    """All of it or nothing: a reader never sees half a file. Each run has its `seconds`."""
    results |= {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        },
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "seeds": seeds,
        "seconds": round(sum(run["seconds"] for run in results["runs"].values()), 1),
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    # One run a line, so that a diff reads.
    runs = ",\n".join(
        f"  {json.dumps(k)}: {json.dumps(v, allow_nan=False)}" for k, v in results["runs"].items()
    )
    head = json.dumps({k: v for k, v in results.items() if k != "runs"}, indent=1, allow_nan=False)
    partial.write_text(head.removesuffix("\n}") + ',\n "runs": {\n' + runs + "\n }\n}\n")
    partial.replace(path)


def key(*parts: Any) -> str:
    """The name of a run in the results file."""
    return " | ".join(str(part) for part in parts)


def run_missing(
    results: dict[str, Any], path: Path, jobs: Iterable[Job], seeds: int, budget: float | None
) -> bool:
    """Runs each job that the results have not, and writes the file after it; True if nothing is missing any more.

    budget: seconds after which no new run starts
    """
    start = time.monotonic()
    for name, run in jobs:
        if name in results["runs"]:
            continue
        if budget is not None and time.monotonic() - start > budget:
            return False
        results["runs"][name] = run()
        save(results, path, seeds)
    return True


def parser(doc: str | None, out: Path, settings: Any) -> argparse.ArgumentParser:
    """The command line of a study: --seeds, --budget, --out, and one option for each of the settings.

    doc:      the script's docstring: its first paragraph is the help
    out:      the results file, if no other is given
    settings: a dataclass with the defaults
    """
    made = argparse.ArgumentParser(description=(doc or "").split("\n\n")[0])
    made.add_argument("--seeds", type=int, default=8)
    made.add_argument("--budget", type=float, help="seconds after which no new run starts")
    made.add_argument("--out", type=Path, default=out)
    for name, default in asdict(settings).items():
        made.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    return made


def chosen(options: argparse.Namespace, settings: Settings) -> Settings:
    """The settings that the command line gave."""
    fields: Any = settings
    return type(settings)(**{name: getattr(options, name) for name in asdict(fields)})


def command(
    arguments: list[str] | None,
    doc: str | None,
    out: Path,
    settings: Any,
    study: Callable[..., bool],
    load: Callable[..., dict[str, Any]],
    summary: Callable[[dict[str, Any]], Iterable[str]],
    always: bool = False,
) -> None:
    """A study's command: measures what is missing, and prints a line per method when
    nothing is (always: as far as it is).

    study(out, settings, seeds, budget) says whether it is complete; load(out, settings) gives the results.
    """
    options = parser(doc, out, settings).parse_args(arguments)
    settings = chosen(options, settings)
    done = study(options.out, settings, options.seeds, options.budget)
    results = load(options.out, settings)
    if done or always:
        print(*summary(results), sep="\n")
    print(how_far(results, done))


def how_far(results: dict[str, Any], done: bool) -> str:
    """How many runs there are, and whether that is all."""
    state = "complete" if done else "not complete: call again to go on"
    return f"{len(results['runs'])} runs; {state}"
