"""The whole suite, stage by stage; what `make test` runs and what CI shows.

A stage that fails does not stop the next one. The last lines are each stage's result and time, then
one line that adds them up; the exit code is 0 only if every stage passed.

    python tools/test.py                 # everything
    python tools/test.py unit timing     # some stages
    DTCOURSE_WORLD_SIZES=2,3 ...         # what the stage `parameters` tries (see tests/notebooks)
    DTCOURSE_TEST_WORKERS=8 ...          # processes for the stages that run in parallel (2)
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "build" / "reports"
NOTHING_COLLECTED = 5  # pytest's exit code
WORKERS = os.environ.get("DTCOURSE_TEST_WORKERS") or "2"


@dataclass
class Stage:
    """One run of pytest: what it is for, what it is given, and how long it may take."""

    name: str
    purpose: str
    arguments: list[str]
    limit: float = 40 * 60.0


@dataclass
class Result:
    """What came of a stage."""

    stage: Stage
    code: int
    seconds: float
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    @property
    def fine(self) -> bool:
        """Passed, or there is nothing of this kind yet."""
        return self.code in (0, NOTHING_COLLECTED) and not self.failed


def stages() -> list[Stage]:
    """All of them, in order. Timing comes alone: a busy second core would spoil what it measures."""
    parallel = ["-n", WORKERS]
    notebooks = [
        str(path.relative_to(ROOT))
        for folder in ("lessons", "solutions")
        for path in sorted((ROOT / folder).glob("*.ipynb"))
    ]
    listed = [
        Stage(
            "unit",
            "unit tests",
            ["tests", *parallel, "--dist", "loadfile", "-m", "not timing and not notebooks"],
        ),
        Stage("timing", "tests that assert wall-clock time, one by one", ["tests", "-m", "timing"]),
    ]
    if notebooks:
        nbval = ["--nbval", "--nbval-current-env", "--nbval-cell-timeout=180"]
        sanitize = ROOT / "tests" / "notebooks" / "sanitize.cfg"
        if sanitize.exists():
            nbval.append(f"--nbval-sanitize-with={sanitize}")
        listed.append(
            Stage(
                "notebooks",
                "lessons and solutions, their outputs compared with the committed ones",
                [*nbval, *notebooks, *parallel, "--dist", "loadfile"],
            )
        )
    listed.append(
        Stage(
            "parameters",
            "notebooks with other parameters",
            ["tests", *parallel, "-m", "notebooks and not timing"],
        )
    )
    return listed


def run(stage: Stage) -> Result:
    """Run one stage in a process group of its own, so that its time limit ends all of it."""
    report = REPORTS / f"{stage.name}.xml"
    report.unlink(missing_ok=True)
    print(f"\n== {stage.name}: {stage.purpose}", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *stage.arguments]
    started = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        code = process.wait(stage.limit)
    except subprocess.TimeoutExpired:
        print(f"{stage.name} was still running after {stage.limit:.0f} s and is ended.", flush=True)
        code = 124
        os.killpg(process.pid, signal.SIGTERM)
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(30)
        raise
    result = Result(stage, code, time.monotonic() - started)
    count(report, result)
    return result


def count(report: Path, result: Result) -> None:
    """Add pytest's own counts; an error (say, in a fixture) counts as a failure."""
    if not report.exists():
        result.failed = max(result.failed, 0 if result.fine else 1)
        return
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        total = int(suite.get("tests", 0))
        failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped = int(suite.get("skipped", 0))
        result.failed += failed
        result.skipped += skipped
        result.passed += max(0, total - failed - skipped)
    if result.code not in (0, NOTHING_COLLECTED) and not result.failed:
        result.failed = 1  # it ended without saying so in the report


def main() -> None:
    """Run the stages named on the command line, or all."""
    chosen = stages()
    names = [stage.name for stage in chosen]
    if unknown := [name for name in sys.argv[1:] if name not in names]:
        sys.exit(f"No stage {', '.join(unknown)}; there are {', '.join(names)}.")
    if sys.argv[1:]:
        chosen = [stage for stage in chosen if stage.name in sys.argv[1:]]

    REPORTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dtcourse-jupyter-") as home:
        # Kernels started here neither read nor write the user's own Jupyter and IPython folders.
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
            os.environ[name] = str(Path(home, name.lower()))
        os.environ.setdefault("MPLCONFIGDIR", str(ROOT / ".cache" / "matplotlib"))
        try:
            results = [run(stage) for stage in chosen]
        except KeyboardInterrupt:
            sys.exit("\nInterrupted.")

    print("\n== summary")
    for result in results:
        state = "ok" if result.fine else f"FAILED (pytest ended with {result.code})"
        print(
            f"{result.stage.name:<11}{result.passed:>5} passed{result.failed:>4} failed"
            f"{result.skipped:>4} skipped{result.seconds:>7.0f} s  {state}"
        )
    print(
        f"{sum(result.passed for result in results)} passed, "
        f"{sum(result.failed for result in results)} failed, "
        f"{sum(result.skipped for result in results)} skipped",
        flush=True,
    )
    sys.exit(0 if all(result.fine for result in results) else 1)


if __name__ == "__main__":
    main()
