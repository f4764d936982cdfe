"""A student's own copies: `dtcourse start` puts them in my/, where no later version of the course touches them."""

from __future__ import annotations

import os
from pathlib import Path

from dtcourse.course import places


class Started(ValueError):
    """The copy is there already, and may hold work."""


def start(number: str) -> Path:
    """Copy an exercise into my/. It never overwrites anything.

    Raises
    ------
    Started
        If the copy exists already.
    ValueError
        If the lesson has no exercises.
    """
    source = places.notebooks("exercises").get(number)
    if source is None:
        there = ", ".join(places.notebooks("exercises")) or "none yet"
        raise ValueError(f"lesson {number} has no exercises; there are exercises for: {there}")
    target = places.home() / "my" / source.name
    target.parent.mkdir(exist_ok=True)
    data = source.read_bytes()
    try:
        # O_EXCL: whatever happens between a look and a write, work is not overwritten.
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        raise Started(
            f"my/{target.name} is there already, and stays as it is: open it, or rename it to start afresh"
        ) from None
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    return target


def find(what: str) -> tuple[str, Path]:
    """The lesson's number and the notebook that `check` means: "02" is the copy in my/, else a path.

    Raises
    ------
    ValueError
        If it is not there.
    """
    path = Path(what)
    if path.suffix == ".ipynb":
        if not path.is_file():
            raise ValueError(f"{what}: no such notebook")
        return number_in(path.name), path
    known = places.notebooks("exercises")
    number = places.numbers([what], known)[0]
    mine = places.home() / "my" / known[number].name
    if not mine.is_file():
        raise ValueError(f"my/{mine.name} is not there yet: `dtcourse start {number}` makes it")
    return number, mine


def number_in(name: str) -> str:
    """The lesson's number in the name of a submission: ana-02-processes.ipynb is of lesson 02.

    Raises
    ------
    ValueError
        If there is none.
    """
    import re

    numbers = re.findall(r"(?<!\d)(\d\d)(?!\d)", name)
    known = set(places.notebooks("exercises")) | set(places.notebooks("solutions"))
    for number in numbers:
        if number in known or not known:
            return number
    raise ValueError(f"{name}: which lesson is it of? Its name needs the number of one, such as 02")
