"""How often a step passes the model: bytes at two widths of it, for the frameworks whose record left room for readings.

    python studies/server_bytes.py                # until all is measured; writes studies/results/server_bytes.json
    python studies/server_bytes.py --budget 300   # stop after 300 s; call again to go on where it stopped

A record of frameworks/ has the bytes of one step at one width, and any sum of a route and an overhead fits one number.
Here the same scripts run with other hidden layers, in a copy of the folder whose job judges no losses. The slope from
one width to the next is how often the model is sent; what is left over is headers and what else does not grow.

Each route predicts the slope, also where the script is changed:

    Ray's actors: a worker's gradient goes to the driver and from there to the server, the model to the driver and from
    there to each worker: 3 per worker, and 1. By Ray's documentation that is so for values up to 100 KB. Larger ones
    lie in the machine's shared memory and pass no socket.

    TensorFlow's server: two workers read the model and add to the sums, 4; the worker that applies reads the sums, and
    writes the weights' change and zeros, 3.

    FairScale's ShardedDataParallel: each gradient is reduced to its owner, which over gloo is a reduce-scatter (1 for
    two ranks) and a gather at the owner (0.5); the owner broadcasts its weights (1).

runs["FRAMEWORK | CHANGE | WIDTH"] = size     of the model, in bytes
                                     bytes    per step, on the loopback device, of all processes and with headers
                                     versions of the framework
                                     seconds

Each needs its environment (`dtcourse framework run NAME` makes it) and Linux's unshare.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dtcourse.course import places, results_file
from dtcourse.course.frameworks import environment, named, running
from dtcourse.course.results_file import key

RESULTS = Path(__file__).parent / "results" / "server_bytes.json"
FORMAT = 1
RAY, TENSORFLOW, FAIRSCALE = "ray-actors", "tensorflow-parameter-server", "fairscale-sharded-ddp"
# Of frameworks/job.py: the width, and that no losses are judged.
JOB = {
    "SIZES = (64, 128, 10)": 'SIZES = (64, int(os.environ["WIDTH"]), 10)',
    "if not max(apart) <= EQUAL:": "if False:",
}


@dataclass(frozen=True)
class Case:
    """A framework's script at some widths.

    change:  of the script, in words
    edit:    what the change replaces in the script, and by what
    widths:  of the hidden layer
    passes:  the slope that the route predicts
    """

    framework: str
    passes: float
    widths: tuple[int, ...] = (128, 512)
    change: str = "as it is"
    edit: tuple[str, str] = ("", "")


ZEROS = ("            total.assign(tf.zeros_like(total))\n", "")
APPLY = ("        coordinator.schedule(apply)\n", "")
CASES = [
    Case(RAY, 7, (64, 128, 256)),
    Case(RAY, 0, (512, 1024), "over 100 KB"),
    Case(RAY, 4, (128, 256), "1 worker", ("WORKERS = 2", "WORKERS = 1")),
    Case(RAY, 10, (128, 256), "3 workers", ("WORKERS = 2", "WORKERS = 3")),
    Case(TENSORFLOW, 7),
    Case(TENSORFLOW, 6, change="no zeros written", edit=ZEROS),
    Case(TENSORFLOW, 4, change="nothing applied", edit=APPLY),
    Case(FAIRSCALE, 2.5),
]


@dataclass(frozen=True)
class Settings:
    """What the numbers depend on; a results file is continued only with the same ones."""

    timeout: float = 400.0  # seconds of a run


def measured(settings: Settings, case: Case, width: int) -> dict[str, Any]:
    """One run, in a copy of the folder."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "frameworks"
        shutil.copytree(places.home() / "frameworks", folder)
        before = os.environ.get("DTCOURSE_HOME")
        os.environ |= {"DTCOURSE_HOME": home, "WIDTH": str(width)}
        try:
            framework = named(case.framework)
            if not environment.is_ready(framework) or not running.can_be_alone():
                raise ValueError(
                    f"make its environment first: dtcourse framework run {framework.name}"
                )
            for old, new in JOB.items():
                edit(folder / "job.py", old, new)
            if case.edit[0]:
                edit(framework.script_file, *case.edit)
            found = running.run(framework, settings.timeout)
        finally:
            os.environ.pop("DTCOURSE_HOME")
            if before is not None:
                os.environ["DTCOURSE_HOME"] = before
    return {
        "size": 4 * (64 * width + width + width * 10 + 10),
        "bytes": round(found["step_bytes"]),
        "versions": found["versions"],
        "seconds": round(time.monotonic() - start, 1),
    }


def edit(file: Path, old: str, new: str) -> None:
    """Replace what stands there once."""
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1, (file.name, old)
    file.write_text(text.replace(old, new), encoding="utf-8")


def jobs(settings: Settings) -> Iterator[results_file.Job]:
    """Each case at each width."""
    for case in CASES:
        for width in case.widths:
            run = partial(measured, settings, case, width)
            yield key(case.framework, case.change, width), run


def load(path: Path, settings: Settings) -> dict[str, Any]:
    """The results so far. ValueError where the file was made with other settings."""
    what = (__doc__ or "").split("\n", 1)[0]
    return results_file.load(path, what, format=FORMAT, settings=asdict(settings))


def study(path: Path, settings: Settings, seeds: int, budget: float | None = None) -> bool:
    """Runs what is missing in the file at `path`; True if nothing is missing any more."""
    results = load(path, settings)
    return results_file.run_missing(results, path, jobs(settings), seeds, budget)


def slope(results: dict[str, Any], case: Case) -> float:
    """Times that the model is sent, between a case's first width and its last."""
    first, last = (
        results["runs"][key(case.framework, case.change, case.widths[i])] for i in (0, -1)
    )
    return float((last["bytes"] - first["bytes"]) / (last["size"] - first["size"]))


def summary(results: dict[str, Any]) -> Iterator[str]:
    """A line per case: the slope that its route predicts, and the one that was measured."""
    for case in CASES:
        name = f"{case.framework}, {case.change}"
        yield f"{name:46s} predicted {case.passes:4g}  measured {slope(results, case):6.3f}"


def main(arguments: list[str] | None = None) -> None:
    """Measures, and prints a line per case. Nothing is drawn, so one seed is all."""
    arguments = ["--seeds", "1", *(arguments or [])]
    results_file.command(arguments, __doc__, RESULTS, Settings(), study, load, summary)


if __name__ == "__main__":
    main(sys.argv[1:])
