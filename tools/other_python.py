"""Tests on another Python than the suite's: launching, checkpoints, what is sent, judging, and five lessons.

    python tools/other_python.py           # on 3.12 or 3.13, by HEAD's tree; CI in every second run, if it is not slow
    python tools/other_python.py 3.13      # on this one

Its environment is made in build/ by tools/environment.py, with the lock's versions, and the next run finds it there.
On Linux the PyTorch that pip takes for these Pythons brings libraries for GPUs: 6 GB of disk. Where there is no such
Python here, too little room, or no way to PyTorch, a sentence says so, and nothing has failed.

build/reports/python.jsonl keeps what happened, test by test; where DTCOURSE_TEST_PYTHON is set, tools/test.py takes
that into its summary. What is read and written between versions is in tests/checkpoint/written.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import machine
import outcomes
import second_try
from bare_machine import NBVAL, ROOM, WORKERS, trouble, write
from bare_place import ROOT
from processes import MARK, end_all, mark_of_this_run

from tests import rotation

RECORD = ROOT / "build" / "reports" / "python.jsonl"
VERSIONS = ("3.12", "3.13")  # that take turns
TRIED = [
    "tests/checkpoint",
    "tests/course/test_judging.py",
    "tests/course/test_taking.py",
    "tests/fault_tolerance/test_weights_only.py",
    "tests/launch/test_launch.py",
    "tests/launch/test_sent_tensors.py",
    "tests/launch/test_workers_of_notebooks.py",
    "tests/repository/test_types.py",
]
# Of lessons.
NUMBERS = ("02", "03", "07", "07b", "16b")
GIGABYTES = 9  # that the installation may need
INSTALLING = 8 * 60  # seconds, on any machine: a network that is slower than that is none
USUAL = 4.0  # minutes that the tests usually take
SLOWEST = 1.8  # a machine that takes so many times as long has no time for it in CI: what every run tries comes first


def find(version: str) -> str | None:
    """The path of a Python of this version: on PATH, or one of pyenv's."""
    own = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    paths = [shutil.which(f"python{version}"), *map(str, reversed(own))]
    return next((path for path in paths if path and _version_of(path) == version), None)


def has_turn(drawn: str) -> bool:
    """Whether CI tries one in the run of that draw: in one of two, since it takes as long as all lessons."""
    return int(drawn[:8], 16) // len(VERSIONS) % 2 == 0


def _version_of(python: str) -> str:
    """As it says itself; a shim of pyenv may lead to none."""
    code = "import sys, ensurepip; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def chosen(here: Sequence[str], drawn: str) -> str | None:
    """Whose turn it is among those that are here."""
    return here[int(drawn[:8], 16) % len(here)] if here else None


def made(version: str, python: str) -> tuple[Path | None, str]:
    """The Python of its environment, or why there is none."""
    venv = ROOT / "build" / f"python-{version}"
    # What is never imported need not be compiled, which takes most of the time.
    environment = {**os.environ, "VENV": str(venv), "PYTHON": python, "PIP_NO_COMPILE": "1"}
    if not (venv / "dtcourse-ready").exists():
        free = shutil.disk_usage(ROOT).free / 1e9
        if free < GIGABYTES:
            return None, f"its environment takes up to {GIGABYTES} GB, and {free:.0f} are free"
    mark = mark_of_this_run()
    process = subprocess.Popen(
        [python, str(ROOT / "tools" / "environment.py")],
        cwd=ROOT, env={**environment, MARK: mark}, start_new_session=True,
    )  # fmt: skip
    try:
        code = process.wait(INSTALLING)
    except subprocess.TimeoutExpired:
        return None, f"its environment was not ready after {INSTALLING / 60:.0f} minutes"
    finally:
        end_all(process, mark)
        process.wait()
    return (None, "its environment could not be made") if code else (venv / "bin" / "python", "")


def runs() -> list[list[str]]:
    """What pytest is given."""
    lessons = [str(*(ROOT / "lessons").glob(f"{number}-*.ipynb")) for number in NUMBERS]
    parallel = ["-n", WORKERS, "--dist"]
    return [
        [*TRIED, *parallel, "worksteal", "-m", "not timing and not notebooks"],
        [*NBVAL, *lessons, *parallel, "loadfile"],
    ]


def run(
    python: Path, arguments: list[str], slowness: float, until: float, again: bool = False
) -> outcomes.Outcomes:
    """One run of pytest there, and where it is not one itself a second try of what failed; what went wrong is printed,
    and is in its outcomes.
    """
    record = ROOT / "build" / "reports" / "python-part.jsonl"
    record.unlink(missing_ok=True)
    mark = mark_of_this_run()
    own = {rotation.TRIED: "fixed", "DTCOURSE_TEST_SLOWNESS": f"{slowness:.2f}", MARK: mark}
    process = subprocess.Popen(
        outcomes.command(str(python), record, arguments, slowness, again),
        cwd=ROOT, env=machine.PATIENT | dict(os.environ) | own, start_new_session=True,
    )  # fmt: skip
    code = 124
    try:
        code = process.wait(max(1.0, until - time.time()))
    except subprocess.TimeoutExpired:
        print("\nended at its limit", flush=True)
    finally:
        end_all(process, mark)
        process.wait()
    found = outcomes.read(record, 0.0)
    if not again:

        def second(given: list[str]) -> outcomes.Outcomes:
            print(f"\n== other Python: {second_try.PURPOSE}", flush=True)
            return run(python, given, slowness, until, again=True)

        code, _ = second_try.once_more(found, code, arguments, second)
    if lines := trouble(found, code):
        print("", *lines, sep="\n")
        if not found.of("failed") and not found.running:
            found.running["pytest"] = 0.0  # a failure that is no test's
    return found


def main() -> int:
    """0 where all passed, or nothing could be tried; the last line says which."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # by way of every `finally`
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    here = sys.argv[1:] or [one for one in VERSIONS if one != own and find(one)]
    version = chosen(here, rotation.draw())
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.unlink(missing_ok=True)
    if version is None:
        print(f"other Python: not tried: none of {', '.join(VERSIONS)} is here besides {own}")
        return 0
    if os.environ.get("CI") and not sys.argv[1:] and not has_turn(rotation.draw()):
        print(f"other Python: not tried: {version} has its turn in another run")
        return 0
    given = os.environ.get("DTCOURSE_TEST_SLOWNESS")
    slowness = float(given) if given else machine.slowness(int(WORKERS) or 1)
    if os.environ.get("CI") and not sys.argv[1:] and slowness > SLOWEST:
        print(f"other Python: not tried: {machine.words(slowness)}")
        return 0
    python = find(version)
    if python is None:
        sys.exit(f"There is no Python {version} on PATH or among pyenv's.")
    environment, why = made(version, python)
    if environment is None:
        print(f"other Python: not tried: {version} is here, but {why}")
        return 0
    print(f"\n== other Python, {version}: {machine.words(slowness)}", flush=True)
    began = time.monotonic()
    until = time.time() + USUAL * 60 * ROOM * slowness
    if end := os.environ.get("DTCOURSE_TEST_UNTIL"):
        until = min(until, time.time() + (float(end) - time.time()) / 4)
    everything = [run(environment, arguments, slowness, until) for arguments in runs()]
    seconds = time.monotonic() - began
    write(everything, seconds, RECORD)
    failed = sum(len(one.of("failed")) + len(one.running) + len(one.not_run) for one in everything)
    passed = sum(len(one.of("passed")) for one in everything)
    print(
        f"other Python, {version}: {passed} passed, {failed} failed in {seconds:.0f} s", flush=True
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
