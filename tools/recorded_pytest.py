"""pytest, with a line written down for each thing that happens, so that a run cut short still tells
what it knew.

    python tools/recorded_pytest.py RECORD.jsonl [--outputs] [pytest's own arguments]

Lines of RECORD.jsonl, in the order of what happened (`outcomes.py` reads them):

    {"collected": [test, ...]}
    {"started": test, "at": seconds}                                  seconds since this process started
    {"test": test, "outcome": "passed" | "failed" | "skipped", "seconds": ..., "why": ..., "output": ...}
                                                                      output: where it failed; --outputs: of each test
    {"waiting": {why: number of tests}}                               what this run leaves out (tests/rotation.py)

A failure's traceback is printed when it happens, and not again at the end; how far the run is, while it runs
(progress.py). With xdist all this is in
the process that hands out the tests; its workers tell it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from progress import Progress

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
LEAN = "-pdtcourse.course.without_grammars"
WORST_LAST = ("passed", "skipped", "failed")
LONGEST = 300  # characters of `why`
OUTPUT = 4000  # of `output`: the last ones


@dataclass
class Test:
    """What is known of a test that is not over: the worst of its phases, and the time of all."""

    outcome: str = "passed"
    seconds: float = 0.0
    why: str = ""
    failures: str = ""
    output: str = ""

    def add(self, report: Any) -> None:
        """Take one phase in: set-up, call or tear-down."""
        self.seconds += report.duration
        if WORST_LAST.index(report.outcome) > WORST_LAST.index(self.outcome):
            self.outcome, self.why = report.outcome, why(report)
        printed = "".join(f"{title}\n{text.rstrip()}\n" for title, text in report.sections)
        failure = f"{report.longreprtext}\n" if report.failed else ""
        # A later phase's report has what an earlier one printed, too.
        self.failures += failure
        self.output = ESCAPES.sub("", self.failures + printed)[-OUTPUT:]


class Recorder:
    """The plugin: in the process that reports, never in an xdist worker."""

    def __init__(self, path: Path, outputs: bool, progress: Progress) -> None:
        self.outputs, self.progress = outputs, progress
        self.file = path.open("w", encoding="utf-8", buffering=1)  # a line at a time
        self.began = time.monotonic()
        self.running: dict[str, Test] = {}
        self.collected = False
        self.config: pytest.Config | None = None

    def write(self, **line: Any) -> None:
        self.file.write(json.dumps(line) + "\n")

    def pytest_configure(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:  # with xdist this process collects nothing
            self.begin([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        if not self.collected:  # every worker collects the same
            self.collected = True
            self.begin(list(ids))

    def begin(self, tests: list[str]) -> None:
        self.write(collected=tests)
        self.progress.begins(len(tests))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.show(report)
            self.write(test=report.nodeid, outcome="failed", seconds=0.0, why=why(report))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.progress.ends()
        if waiting := getattr(session.config, "waiting", None):
            self.write(waiting=waiting)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        if waiting := getattr(node, "workeroutput", {}).get(
            "waiting"
        ):  # every worker leaves out the same
            self.write(waiting=waiting)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.running[nodeid] = Test()
        self.write(started=nodeid, at=round(time.monotonic() - self.began, 3))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.show(report)
        self.running.setdefault(report.nodeid, Test()).add(report)
        if report.when not in ("setup", "call", "teardown"):  # the worker died, says xdist
            self.pytest_runtest_logfinish(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        test = self.running.pop(nodeid, None)
        if test is not None:
            self.progress.goes_on()
            told = {"outcome": test.outcome, "seconds": round(test.seconds, 3), "why": test.why}
            if self.outputs or test.outcome == "failed":
                told["output"] = test.output
            self.write(test=nodeid, **told)

    def show(self, report: Any) -> None:
        """Print a failure now: a run that is cut short has no end at which to print it."""
        terminal = self.config and self.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is None:
            return
        when = getattr(report, "when", "")
        phase = f" ({when})" if when in ("setup", "teardown") else ""
        with self.progress.aside():
            terminal.write_sep("_", f"{report.nodeid}{phase}", red=True, bold=True)
            terminal.write_line(report.longreprtext)
            for title, text in report.sections:
                terminal.write_sep("-", title)
                terminal.write_line(text.rstrip())
            terminal.flush()  # into a pipe it would wait, and be lost with a run that is killed


def why(report: Any) -> str:
    """One line: a failure's exception, a skip's reason."""
    told = report.longrepr
    if isinstance(told, tuple):  # a skip: file, line, reason
        return one_line(told[2].removeprefix("Skipped: "))
    crash = getattr(told, "reprcrash", None)
    if crash is not None:
        return one_line(crash.message)
    lines = [line for line in ESCAPES.sub("", str(told)).splitlines() if line.strip()]
    return one_line(lines[-1]) if lines else ""


def one_line(text: str) -> str:
    text = " ".join(ESCAPES.sub("", text).split())
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def main() -> int:
    """Run pytest as `python -m pytest` would."""
    sys.path[0] = os.getcwd()
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # A shell's background job: it would not hear when the stage is ended.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    record, *arguments = sys.argv[1:]
    outputs = arguments[:1] == ["--outputs"]
    progress = Progress(Path(record).stem)
    recorder = Recorder(Path(record), outputs, progress)
    # pytest's own summary would print every failure a second time.
    return int(
        pytest.main(
            # A plugin before nbval's.
            [
                "-q",
                "--no-summary",
                "-o",
                "console_output_style=classic",
                LEAN,
                *arguments[outputs:],
            ],
            plugins=[recorder, progress],
        )
    )


if __name__ == "__main__":
    sys.exit(main())
