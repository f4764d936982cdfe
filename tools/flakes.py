"""A flake is a defect with a date: tests/flakes.toml has each test that failed and passed at the second try.

    [[flake]]
    test = "tests/launch/test_light.py::test_a_light_rank"   # as the summary of a run prints it
    date = 2026-11-29
    commit = "12219e68"          # where it failed
    cause = ""                   # once it is known
    mended = ""                  # the commit that mended it

The summary of a run prints the entry, and whoever works next commits it. A test with two entries that are not mended
gets no second try, and one that is older than DAYS and not mended is overdue: a test fails then, and so does

    python tools/flakes.py       # a part of `make lint`
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import date, timedelta
from pathlib import Path
from typing import Any

PLACE = Path(__file__).resolve().parent.parent / "tests" / "flakes.toml"
DAYS = 14
ENTRIES = 2  # of one test that are not mended: from so many on it is no accident


@dataclass(frozen=True)
class Flake:
    """An entry; `cause` and `mended` are empty until they are known."""

    test: str
    date: date
    commit: str
    cause: str
    mended: str


def read(place: Path = PLACE) -> list[Flake]:
    """All entries; a ValueError says what is wrong with one."""
    text = place.read_text(encoding="utf-8") if place.exists() else ""
    return [
        checked(number, entry)
        for number, entry in enumerate(tomllib.loads(text).get("flake", []), 1)
    ]


def checked(number: int, entry: dict[str, Any]) -> Flake:
    wanted = {one.name: date if one.name == "date" else str for one in fields(Flake)}
    if {name: type(value) for name, value in entry.items()} != wanted:
        raise ValueError(
            f"tests/flakes.toml, entry {number}: it has {', '.join(entry) or 'nothing'}; an entry has test, commit, "
            "cause and mended, in quotes, and date, without (tools/flakes.py)"
        )
    return Flake(**entry)


def no_accident(flakes: Iterable[Flake]) -> set[str]:
    """The tests that get no second try any more."""
    open_ones = Counter(flake.test for flake in flakes if not flake.mended)
    return {test for test, number in open_ones.items() if number >= ENTRIES}


def overdue(flakes: Iterable[Flake], today: date) -> list[Flake]:
    """What is not mended after DAYS."""
    return [one for one in flakes if not one.mended and one.date < today - timedelta(days=DAYS)]


def entry(test: str, today: date, commit: str) -> str:
    """A new one, as it goes into the file."""
    lines = [
        f"test = {json.dumps(test, ensure_ascii=False)}",
        f"date = {today}",
        f'commit = "{commit}"',
    ]
    return "\n".join(["[[flake]]", *lines, 'cause = ""', 'mended = ""', ""])


def main() -> int:
    late = overdue(read(), date.today())
    for one in late:
        print(
            f"tests/flakes.toml: {one.test} flaked on {one.date} and is not mended after {DAYS} days: find the "
            "cause, and enter the commit that mends it"
        )
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
