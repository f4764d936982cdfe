"""Where the course's files are, and which lesson "02", "14b", "5-7" or "03-collectives" means."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
SYLLABUS = Path(__file__).with_name("syllabus.yml")
NUMBERED = "[0-9][0-9]*-*.ipynb"  # the notebooks of lessons, as a folder finds them


def home() -> Path:
    """The folder that holds lessons/, exercises/ and solutions/.

    It is, in this order: the environment variable DTCOURSE_HOME; the nearest folder above the current
    one with a lessons/ in it and a pyproject.toml beside that; the checkout that this package is in.

    Raises ValueError if there is none, which is so when the package was installed without the course's repository.
    """
    if given := os.environ.get("DTCOURSE_HOME"):
        return Path(given).expanduser().resolve()
    here = Path.cwd().resolve()
    for folder in (here, *here.parents):
        if (folder / "lessons").is_dir() and (folder / "pyproject.toml").is_file():
            return folder
    if (PACKAGE.parent / "lessons").is_dir() or (PACKAGE.parent / "pyproject.toml").is_file():
        return PACKAGE.parent
    raise ValueError(
        "the lessons are not here: go to the folder of the course's repository, or set DTCOURSE_HOME to it"
    )


def own() -> Path:
    """Where a student's copies are: what DTCOURSE_MY names (many students share one installation),
    else my/ in `home()`.
    """
    given = os.environ.get("DTCOURSE_MY")
    return Path(given).expanduser().resolve() if given else home() / "my"


def notebooks(kind: str = "lessons") -> dict[str, Path]:
    """The notebooks of one kind ("lessons", "exercises", "solutions", "my"), by lesson number, sorted."""
    found: dict[str, Path] = {}
    folder = own() if kind == "my" else home() / kind
    for path in sorted(folder.glob(NUMBERED)):
        if number := number_of(path.name):
            found.setdefault(number, path)
    return found


def number_of(name: str) -> str:
    """The lesson's number, which a file's or a lesson's name begins with: "14" of 14-memory-anatomy, "14b" of
    14b-half-precision; "" where there is none. Numbers sort as lessons follow each other: 14, 14b, 15.
    """
    match = re.match(r"\d\d[a-z]?(?=-)", name)
    return match[0] if match else ""


def numbers(wanted: Iterable[str], known: Iterable[str]) -> list[str]:
    """Turn what a user typed ("3", "14b", "05-07", "02-processes-and-ranks", "all") into lesson numbers.

    A range goes from one number to the other: 14-15 holds 14b, and 13-14 does not.

    Raises ValueError where something is not a lesson, naming those that there are.
    """
    known = sorted(known)
    chosen: list[str] = []
    for item in wanted:
        text = Path(item).name.removesuffix(".ipynb")
        if text == "all":
            chosen += known
        elif match := re.fullmatch(r"(\d{1,2}[a-z]?)-(\d{1,2}[a-z]?)", text):
            first, last = (padded(number) for number in match.groups())
            if first > last:
                raise ValueError(
                    f"{item}: the first lesson of a range comes first, so {last}-{first}"
                )
            inside = [number for number in known if first <= number <= last]
            if not inside:
                raise ValueError(
                    f"{item}: no lesson from {first} to {last}; there are {_names(known)}"
                )
            chosen += inside
        elif match := re.fullmatch(r"(\d{1,2}[a-z]?)(-[a-z0-9-]+)?", text):
            number = padded(match[1])
            if number not in known:
                raise ValueError(f"there is no {number}; there are {_names(known)}")
            chosen.append(number)
        else:
            raise ValueError(
                f"{item!r} is no lesson: give a number such as 03 or 14b, a range such as 05-07, or all"
            )
    return list(dict.fromkeys(chosen))


def padded(number: str) -> str:
    """A lesson's number as its files have it: "03" for "3", "04b" for "4b". What is no number stays as it is."""
    return f"0{number}" if re.fullmatch(r"\d[a-z]?", number) else number


def _names(known: list[str]) -> str:
    return ", ".join(known) if known else "none yet"
