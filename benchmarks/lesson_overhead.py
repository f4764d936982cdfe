"""What launching costs in the lessons: run.total_seconds - run.seconds, summed over the launches of every lesson.

    python benchmarks/lesson_overhead.py                       # all lessons, this checkout
    python benchmarks/lesson_overhead.py 03 06                 # two of them
    python benchmarks/lesson_overhead.py --against OLD         # each lesson in turns with the dtcourse of folder OLD

Each lesson is executed from top to bottom by nbclient, as CI does, in a kernel of its own; a cell put before the first
counts. Launches that raise are not counted: they return no Run. With --against both run the same notebook, one after
the other, so a machine whose speed drifts does the same to both, and the last line is the ratio of the sums.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]

COUNT = """
import importlib as _importlib
_launcher = _importlib.import_module("dtcourse.launch.launcher")
_overheads = []

class _Counted(_launcher.Run):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        _overheads.append(self.total_seconds - self.seconds)

_launcher.Run = _Counted
"""
SAY = "import json as _json\nprint(_json.dumps(_overheads))"


def overheads(lesson: Path, package: Path) -> list[float]:
    """Seconds around the function of each launch of a lesson, run with the dtcourse in folder `package`."""
    notebook = copy.deepcopy(nbformat.read(lesson, as_version=4))
    first = nbformat.v4.new_code_cell(COUNT)
    last = nbformat.v4.new_code_cell(SAY)
    notebook.cells = [first, *notebook.cells, last]
    client = NotebookClient(
        notebook,
        timeout=1200,
        kernel_name="python3",
        allow_errors=True,  # an older package may lack what a cell shows; the launches count all the same
        resources={"metadata": {"path": str(lesson.parent)}},
    )
    client.execute(env={**os.environ, "PYTHONPATH": str(package)})
    return json.loads(last.outputs[-1]["text"])


def main() -> None:
    """Prints a line a lesson, and the sums."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("lessons", nargs="*", help="numbers; none takes all")
    parser.add_argument("--against", type=Path, help="a folder with another version's dtcourse/")
    asked = parser.parse_args()
    packages = [ROOT, *([asked.against.resolve()] if asked.against else [])]
    sums = [0.0 for _ in packages]
    for lesson in sorted((ROOT / "lessons").glob("[0-9][0-9]-*.ipynb")):
        if asked.lessons and lesson.name[:2] not in asked.lessons:
            continue
        words = []
        for place, package in enumerate(packages):
            seconds = overheads(lesson, package)
            sums[place] += sum(seconds)
            middle = statistics.median(seconds) if seconds else 0.0
            words.append(f"{sum(seconds):6.2f} s in {len(seconds)} launches (median {middle:.3f})")
        print(f"{lesson.stem:<32}{'   against '.join(words)}", flush=True)
    print(f"{'all':<32}{sums[0]:6.2f} s")
    if asked.against and sums[1]:
        print(f"{sums[0] / sums[1]:.2f} of what it is with {asked.against}")


if __name__ == "__main__":
    main()
