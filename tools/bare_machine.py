"""Tests where none of the optional programs is, at an ordinary user's, in a folder whose path has a space.

    python tools/bare_machine.py                 # what CI runs before the suite (`make test-bare`)
    python tools/bare_machine.py tests/cli -x    # pytest's arguments, for one run there

Most who type `make test` have no Slurm, no bubblewrap, ... and are not root; CI has them all and is. So what the suite
does without them is seen nowhere else. Here bare_place.py makes such a machine of this one. There run the tests
that a missing program, an ordinary user or that folder could change (TRIED, of these what `make test` tries:
tests/rotation.py), two lessons that have something to start, and two on checkpoints. The other tests start ranks or
read sources, and nothing else: they are the same with and without these programs, and CI runs them once.

It fails where a test fails, and where one is skipped for another reason than that what it needs is missing
(tests/optional_programs.py). build/reports/bare.jsonl keeps what happened, test by test; where DTCOURSE_TEST_BARE is
set, tools/test.py takes that into its summary.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import machine
import outcomes
import second_try
from bare_place import ROOT, Place
from processes import MARK, end_all, mark_of_this_run

from tests import optional_programs, rotation

RECORD = ROOT / "build" / "reports" / "bare.jsonl"
WORKERS = os.environ.get("DTCOURSE_TEST_WORKERS") or "3"
# What starts a program that may be missing, or asks for one; what an ordinary user may not do; what a folder with a
# space breaks. Of launching what differs there: a rank's start, its sockets, other programs' ranks.
TRIED = [
    "tests/checkpoint",
    "tests/cli",
    "tests/browser",
    "tests/course/test_attacks.py",
    "tests/course/test_bubblewrap.py",
    "tests/course/test_hostile_answers.py",
    "tests/course/test_judging.py",
    "tests/course/test_workspace.py",
    # The other lessons' are judged by the same processes, and their checks ask for no program.
    "tests/course/test_exercises.py::test_the_solutions_pass[02]",
    "tests/course/test_outlines.py::test_the_ranks_find_loaded_what_their_answers_need_and_no_more",
    "tests/launch/cluster",
    "tests/fault_tolerance/test_preemption.py::test_under_slurm_the_job_asks_to_be_started_again_and_goes_on",
    "tests/fault_tolerance/test_chaos_on_slurm.py",
    "tests/launch/test_launch.py",
    "tests/launch/test_server_process.py",
    "tests/launch/test_torchrun.py",
    "tests/notebooks/test_commands.py",
    "tests/notebooks/test_recorded.py",
    "tests/repository/test_conftest.py",
    "tests/repository/test_containerfile.py",
    "tests/repository/test_optional_programs.py",
    "tests/repository/test_package.py",
    "tests/repository/test_readme.py",
    "tests/repository/test_rotation.py",
    "tests/repository/test_rules.py",
]
LESSONS = [
    "lessons/05-networks-and-backends.ipynb",
    # Checkpoints: CI runs all this on Debian's Python, whose index is pickled otherwise (tests/checkpoint).
    "lessons/16b-fsdp-in-practice.ipynb",
    "lessons/25-fault-tolerance.ipynb",
    "lessons/26-clusters.ipynb",
]
NBVAL = ["--nbval", "--nbval-current-env", "--nbval-sanitize-with=tests/notebooks/sanitize.cfg"]
USUAL = 6.0  # minutes that all of it usually takes
ROOM = 3.0  # it may take so many times as long, times the machine's slowness

# Printed there before anything else: what would make the rest prove nothing.
LOOK = """
import os, pathlib, dtcourse
from tests import optional_programs
clone = pathlib.Path.cwd()
assert pathlib.Path(dtcourse.__file__).is_relative_to(clone), dtcourse.__file__
assert " " in str(clone) and os.geteuid() != 0
here = [need.name for need in optional_programs.NEEDS.values() if need.brings and need.is_here()]
assert not here, f"still to be found: {here}"
"""


def runs(arguments: list[str]) -> dict[str, list[str]]:
    """{name: what pytest is given}."""
    if arguments:
        return {"tests": arguments}
    parallel = ["-n", WORKERS]
    chosen = ["-m", "not timing and not notebooks"]
    return {
        "tests": [*TRIED, *parallel, "--dist", "worksteal", *chosen],
        "lessons": [*NBVAL, *LESSONS, *parallel, "--dist", "loadfile"],
    }


def judged(found: outcomes.Outcomes) -> outcomes.Outcomes:
    """A skip for a reason that is on no list is a failure."""
    for line in found.of("skipped").values():
        if optional_programs.unknown([line["why"]]):
            line["outcome"] = "failed"
            line["why"] = f"skipped for what is not in tests/optional_programs.py: {line['why']}"
    return found


def trouble(found: outcomes.Outcomes, code: int) -> list[str]:
    """What is wrong with a run: a line for each thing, none where all is well."""
    lines = [f"failed: {test}: {line['why']}" for test, line in found.of("failed").items()]
    lines += [f"under way at the end: {test}" for test in found.running]
    lines += [f"never started: {line}" for line in outcomes.named(found.not_run, found.seen)]
    if not found.finished:
        lines.append("nothing ran")
    return lines if lines or not code else [f"pytest ended with {code}"]


def run(place: Place, command: list[str], environment: dict[str, str], until: float) -> int:
    """The exit code of a command there; 124 where it was ended at its limit."""
    mark = mark_of_this_run()
    process = subprocess.Popen(
        place.command(*command),
        cwd=place.clone,
        env={**environment, MARK: mark},
        start_new_session=True,
    )
    try:
        return process.wait(max(1.0, until - time.time()))
    except subprocess.TimeoutExpired:
        print("\nended at its limit", flush=True)
        return 124
    finally:
        end_all(process, mark)


def in_two_tries(
    place: Place,
    python: str,
    arguments: list[str],
    environment: dict[str, str],
    slowness: float,
    until: float,
) -> tuple[outcomes.Outcomes, int]:
    """What came of a run of pytest there, and its exit code; what failed is run once more."""
    record, code = place.top / "tmp" / "bare.jsonl", 0

    def once(given: list[str], outputs: bool = False) -> outcomes.Outcomes:
        nonlocal code
        record.unlink(missing_ok=True)
        command = outcomes.command(python, record, given, slowness, outputs)
        code = run(place, command, environment, until)
        return outcomes.read(record, 0.0)

    def again(given: list[str]) -> outcomes.Outcomes:
        print(f"\n== bare machine: {second_try.PURPOSE}", flush=True)
        return once(given, outputs=True)

    found = once(arguments)
    code, _ = second_try.once_more(found, code, arguments, again)
    return found, code


def limit(slowness: float) -> float:
    """When it has to be over, as time.time() has it: the suite behind it needs most of what there is."""
    seconds = USUAL * 60 * ROOM * slowness
    if end := os.environ.get("DTCOURSE_TEST_UNTIL"):
        seconds = min(seconds, (float(end) - time.time()) / 3)
    return time.time() + seconds


def write(everything: list[outcomes.Outcomes], seconds: float, record: Path) -> None:
    """One record of all runs, as tools/test.py reads it."""
    lines: list[dict[str, Any]] = [
        {"collected": [test for one in everything for test in one.not_run]}
    ]
    for one in everything:
        lines += [{"started": test, "at": 0.0} for test in one.running]
        lines += one.finished.values()
    record.write_text("".join(json.dumps(line) + "\n" for line in [*lines, {"took": seconds}]))


def main() -> int:
    """0 where all passed; the last line says how many."""
    if sys.platform != "linux" or shutil.which("git") is None:
        sys.exit("make test-bare: it needs Linux and, for the list of the clone's files, git")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # by way of every `finally`
    slowness = float(
        os.environ.get("DTCOURSE_TEST_SLOWNESS") or machine.slowness(int(WORKERS) or 1)
    )
    print(machine.words(slowness), flush=True)
    began, until = time.monotonic(), limit(slowness)
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.unlink(missing_ok=True)
    everything, lines = [], []
    with tempfile.TemporaryDirectory(prefix="bare-", dir="/tmp", ignore_cleanup_errors=True) as top:
        place = Place(Path(top))
        python = str(place.clone / ".venv" / "bin" / "python")
        environment = machine.PATIENT | place.environment()
        if run(place, [python, "-c", LOOK], environment, until):
            print("bare machine: FAILED: it could not be made; its Python's words are above")
            return 1
        environment |= {
            rotation.TRIED: "fixed",
            "DTCOURSE_TEST_SLOWNESS": f"{slowness:.2f}",
            "MPLCONFIGDIR": str(place.clone / ".cache" / "matplotlib"),
        }
        for name, arguments in runs(sys.argv[1:]).items():
            print(f"\n== bare machine, {name}: {shlex.join(arguments)}", flush=True)
            found, code = in_two_tries(place, python, arguments, environment, slowness, until)
            everything.append(judged(found))
            lines += trouble(everything[-1], code)
    seconds = time.monotonic() - began
    write(everything, seconds, RECORD)
    counts = Counter(line["outcome"] for one in everything for line in one.finished.values())
    print("", *lines, sep="\n")
    print(
        f"bare machine: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped "
        f"in {seconds:.0f} s: {'FAILED' if lines else 'ok'}",
        flush=True,
    )
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
