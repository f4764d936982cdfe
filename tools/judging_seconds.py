"""Processor seconds that judging takes: of each exercise's solution, over all processes, one after the other.

    .venv/bin/python tools/judging_seconds.py                       # all exercises
    .venv/bin/python tools/judging_seconds.py diagnose_step 08-2    # by name, or by lesson and place in it

Answers are judged as they are graded, in a sandbox. What it takes to start is not counted, nor what the first launch
loads; of a lesson's checks, what the judge computes once and keeps is counted where it is first needed.
"""

from __future__ import annotations

import os
import sys
import time

import psutil

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as checking.py has it

from dtcourse.course import notebook as nbfile
from dtcourse.course import places
from dtcourse.course.checking import check_in
from dtcourse.course.judging import Exercise, bubblewrap, exercises
from dtcourse.course.judging.sandbox import Sandbox
from dtcourse.launch import launch, standby


def spent() -> float:
    """Of this process and all that descend from it, those included that have ended and were waited for."""
    found = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.Error:  # ended meanwhile: its parent counts it
            continue
        found += times.user + times.system + times.children_user + times.children_system
    return found


def nothing() -> None:
    """What a launch runs that is to start the ranks' server."""


def settle() -> None:
    """Waits until nothing is loaded any more: neither the sandbox's process, nor a template of ranks."""
    before, quiet = spent(), 0
    while quiet < 3:
        time.sleep(0.5)
        now = spent()
        quiet = quiet + 1 if now - before < 0.05 else 0
        before = now


def places_of(lesson: str) -> dict[str, Exercise]:
    """The exercises of a lesson by what a reader calls them: "08-2"."""
    return {f"{lesson}-{n}": one for n, one in enumerate(exercises(lesson).values(), 1)}


def main(wanted: list[str]) -> None:
    os.nice(10)
    found = []
    for lesson in sorted({one.lesson for one in exercises().values()}):
        here = {
            place: one
            for place, one in places_of(lesson).items()
            if not wanted or {place, one.name, lesson} & set(wanted)
        }
        if not here:
            continue
        solution = nbfile.read(places.notebooks("solutions")[lesson])
        with Sandbox(3600, confined=not bubblewrap.why_not()) as sandbox, standby.keeping():
            launch(nothing, 2)
            sandbox.begin()
            for place, one in here.items():
                settle()
                before, begun = spent(), time.perf_counter()
                (report,) = check_in(sandbox, solution, [one])
                seconds, wall = spent() - before, time.perf_counter() - begun
                found.append((seconds, place, one.name))
                passed = "" if report.passed else f"  does not pass: {report}"
                print(
                    f"{place:7} {one.name:28} {seconds:6.1f} s  {wall:6.1f} s on the clock{passed}",
                    flush=True,
                )
    print(
        "\nmost first:",
        ", ".join(f"{place} {seconds:.1f}" for seconds, place, _ in sorted(found)[:-9:-1]),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
