"""Where the course's files are, and which lesson "02", "5-7" or "03-collectives" means."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
SYLLABUS = Path(__file__).with_name("syllabus.yml")


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
    for path in sorted(folder.glob("[0-9][0-9]-*.ipynb")):
        found.setdefault(path.name[:2], path)
    return found


def numbers(wanted: Iterable[str], known: Iterable[str]) -> list[str]:
    """Turn what a user typed ("3", "05-07", "02-processes-and-ranks", "all") into lesson numbers.

    Raises ValueError where something is not a lesson, naming those that there are.
    """
    known = sorted(known)
    chosen: list[str] = []
    for item in wanted:
        text = Path(item).name.removesuffix(".ipynb")
        if text == "all":
            chosen += known
        elif match := re.fullmatch(r"(\d{1,2})-(\d{1,2})", text):
            first, last = (int(number) for number in match.groups())
            if first > last:
                raise ValueError(
                    f"{item}: the first lesson of a range comes first, so {last:02}-{first:02}"
                )
            inside = [number for number in known if first <= int(number) <= last]
            if not inside:
                raise ValueError(
                    f"{item}: no lesson from {first:02} to {last:02}; there are {_names(known)}"
                )
            chosen += inside
        elif match := re.fullmatch(r"(\d{1,2})(-[a-z0-9-]+)?", text):
            number = f"{int(match[1]):02}"
            if number not in known:
                raise ValueError(f"there is no {number}; there are {_names(known)}")
            chosen.append(number)
        else:
            raise ValueError(
                f"{item!r} is no lesson: give a number such as 03, a range such as 05-07, or all"
            )
    return list(dict.fromkeys(chosen))


def _names(known: list[str]) -> str:
    return ", ".join(known) if known else "none yet"
