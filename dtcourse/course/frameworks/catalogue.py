"""Which frameworks there are: frameworks/catalogue.toml, one table each."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from dtcourse.course import places


def folder() -> Path:
    """Where the scripts are.

    Raises ValueError where the course's repository is not here.
    """
    return places.home() / "frameworks"


@dataclass(frozen=True)
class Framework:
    """One way to do the job.

    name:        what the command calls it
    title:       what people call it
    command:     what starts its processes, in the folder of the scripts; its Python is first on PATH
    script:      the file that a reader reads
    pins:        its packages' versions, a file in frameworks/pins/; "" where the course's own environment has them
    packages:    those whose versions its record tells
    needs:       a program of the system, "" where none is needed
    prepare:     what has to be built in its environment after its packages
    megabytes:   of its environment on disk, and
    minutes:     what making it takes on two cores
    environment: variables of its processes
    wire:        why bytes cannot be counted, in a sentence; "" where they can
    note:        what a reader should know
    """

    name: str
    title: str
    command: str
    script: str
    pins: str = ""
    packages: tuple[str, ...] = ("torch",)
    needs: str = ""
    prepare: str = ""
    megabytes: int = 0
    minutes: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    wire: str = ""
    note: str = ""

    @property
    def script_file(self) -> Path:
        """The script's path."""
        return folder() / self.script

    @property
    def pins_file(self) -> Path | None:
        """The path of its pins, if it has some."""
        return folder() / "pins" / f"{self.pins}.txt" if self.pins else None


def known() -> dict[str, Framework]:
    """All frameworks by name, in the order of the file."""
    text = (folder() / "catalogue.toml").read_text(encoding="utf-8")
    found = {}
    for name, about in tomllib.loads(text).items():
        found[name] = Framework(
            name=name, **{**about, "packages": tuple(about.get("packages", ["torch"]))}
        )
    return found


def named(name: str) -> Framework:
    """The framework of that name.

    Raises ValueError where there is none, with the names that are like it.
    """
    names = known()
    if name in names:
        return names[name]
    like = difflib.get_close_matches(name, names, n=3) or [
        each for each in names if name.lower() in each
    ]
    hint = f"did you mean {' or '.join(like)}?" if like else "`dtcourse framework list` has all"
    raise ValueError(f"there is no framework {name!r}; {hint}")
