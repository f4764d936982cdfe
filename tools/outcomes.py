"""What is known of a stage from its record (`recorded_pytest.py` writes it), however the stage ended."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests import rotation

TEST_LIMIT = 300.0  # seconds for one test without a limit of its own, as in pyproject.toml
CELL_LIMIT = 180.0  # seconds for one cell of a notebook


@dataclass
class Outcomes:
    """Every test of a stage.

    finished   {test: its line of the record}
    running    {test: seconds since it started}: those that were under way at the end
    not_run    tests that were collected and never started
    waiting    {why: number of tests} that this run leaves out
    seconds    that all took; 0 where the record does not say
    """

    finished: dict[str, dict[str, Any]] = field(default_factory=dict)
    running: dict[str, float] = field(default_factory=dict)
    not_run: list[str] = field(default_factory=list)
    waiting: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def of(self, outcome: str) -> dict[str, dict[str, Any]]:
        """The finished tests that passed, failed or were skipped."""
        return {test: line for test, line in self.finished.items() if line["outcome"] == outcome}

    @property
    def second(self) -> dict[str, dict[str, Any]]:
        """Those that passed at the second try (second_try.py); `first` of its line is the first one's."""
        return {test: line for test, line in self.finished.items() if "first" in line}

    @property
    def seen(self) -> set[str]:
        """The tests that started."""
        return self.finished.keys() | self.running.keys()

    @property
    def skips(self) -> Counter[str]:
        """How many tests were skipped for which reason."""
        return Counter(line["why"] for line in self.of("skipped").values())

    def skipped_by(self, reason: str) -> str:
        """Which tests were skipped for a reason: a file and how many of its tests, or the only one."""
        files: dict[str, list[str]] = {}
        for test, line in self.of("skipped").items():
            if line["why"] == reason:
                files.setdefault(test.partition("::")[0], []).append(test)
        return ", ".join(
            tests[0] if len(tests) == 1 else f"{file} ({len(tests)})"
            for file, tests in files.items()
        )


def command(
    python: str, record: Path, arguments: list[str], slowness: float, outputs: bool = False
) -> list[str]:
    """One run of pytest in the repository's root that writes such a record, with the machine's limits."""
    limits = [f"--timeout={TEST_LIMIT * slowness:.0f}"]
    if "--nbval" in arguments:
        cell = f"{CELL_LIMIT * slowness:.0f}"
        # A kernel's own limit of 60 s was passed once, by two that began together on a busy machine.
        limits += [f"--nbval-cell-timeout={cell}", f"--nbval-kernel-startup-timeout={cell}"]
    own = ["--outputs"] * outputs
    return [python, "tools/recorded_pytest.py", str(record), *own, *limits, *arguments]


def read(path: Path, ended: float) -> Outcomes:
    """The outcomes of a record; `ended` is when the stage ended, in seconds since it started.

    A last line that was cut off in writing is left out; a file that is not there holds nothing.
    """
    found = Outcomes()
    collected: list[str] = []
    late: dict[str, str] = {}  # what waits, and was collected
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    for line in map(parsed, text.splitlines()):
        if "collected" in line:
            collected = line["collected"]
        elif "started" in line:
            found.running[line["started"]] = max(0.0, ended - line["at"])
        elif "test" in line:
            found.running.pop(line["test"], None)
            if line["outcome"] == "skipped" and line["why"].startswith(rotation.NOT_ITS_TURN):
                late[line["test"]] = line["why"]
            else:
                found.finished[line["test"]] = line
        elif "waiting" in line:
            found.waiting = line["waiting"]
        elif "took" in line:
            found.seconds = line["took"]
    # A notebook is one, whatever its cells.
    whole = {
        test.partition("::")[0] if ".ipynb::" in test else test: why for test, why in late.items()
    }
    found.waiting = dict(Counter(found.waiting) + Counter(whole.values()))
    seen = found.seen | late.keys()
    found.not_run = [test for test in collected if test not in seen]
    return found


def parsed(line: str) -> dict[str, Any]:
    try:
        return json.loads(line)
    except ValueError:
        return {}


def by_file(tests: dict[tuple[str, str], float]) -> list[tuple[str, float]]:
    """Seconds of each stage's test files, most first, from {(stage, test): seconds}."""
    files: dict[str, float] = {}
    for (stage, test), seconds in tests.items():
        name = f"{stage:<11}{test.partition('::')[0]}"
        files[name] = files.get(name, 0.0) + seconds
    return sorted(files.items(), key=lambda item: -item[1])


def named(not_run: list[str], seen: set[str]) -> list[str]:
    """Tests in words: a file of which nothing ran is one line, of any other each test is."""
    begun = {test.partition("::")[0] for test in seen}
    whole = Counter(test.partition("::")[0] for test in not_run)
    lines = [f"{file}, all {number} tests" for file, number in whole.items() if file not in begun]
    return lines + [test for test in not_run if test.partition("::")[0] in begun]
