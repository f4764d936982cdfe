"""The gallery from a command line: a script that is run, and the list of all."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dtcourse.debugging.gallery.examine import examine
from dtcourse.debugging.gallery.running import HANG, TIMEOUT, as_file, run
from dtcourse.debugging.gallery.script import Script, read


def main(file: str, argv: Sequence[str] | None = None) -> None:
    """What a script of the gallery does when it is run."""
    script = read(file)
    parser = argparse.ArgumentParser(description=script.symptom)
    parser.add_argument("--repaired", action="store_true", help="run the repaired twin")
    parser.add_argument("--tools", action="store_true", help="show what each tool says of it")
    asked = parser.parse_args(argv)
    if asked.tools:
        return print(examine(script, asked.repaired))
    text = script.repaired if asked.repaired else script.text
    limit = HANG if script.kind == "hangs" and not asked.repaired else TIMEOUT
    with as_file(script.path.name, text) as path:
        outcome = run(path, script.ranks, timeout=limit)
    print(outcome.failure or f"It {outcome.end}.")
    for rank, result in enumerate(outcome.results):
        print(f"rank {rank}: {_shown(result)}")


def _shown(result: Any) -> str:
    """What a rank returned, in a line."""
    if not isinstance(result, dict):
        return str(result)
    parts = []
    for name, value in result.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {float(v.norm()):.4g}" for key, v in value.items())
            parts.append(f"norms of {name}: {value}")
        elif isinstance(value, (list, tuple)):
            parts.append(f"{name} {', '.join(f'{float(v):.4g}' for v in value)}")
        else:
            parts.append(f"{name} {value}")
    return "; ".join(parts)


def folder() -> Path:
    """Where the scripts are: gallery/ in or above the current folder, beside a pyproject.toml, or in the checkout.

    Raises ValueError where there is none, as where the package alone is installed.
    """
    here = Path.cwd().resolve()
    checkout = Path(__file__).resolve().parents[3]
    for top in (here, *here.parents, checkout):
        if (top / "gallery").is_dir() and (top / "pyproject.toml").is_file():
            return top / "gallery"
    raise ValueError("the gallery is not here: go to the folder of the course's repository")


def scripts(place: Path | None = None) -> list[Script]:
    """All scripts of a folder, by name."""
    return [read(path) for path in sorted((place or folder()).glob("*.py"))]


def table(listed: Sequence[Script]) -> str:
    """Each script's name, kind and symptom."""
    wide = max((len(script.name) for script in listed), default=0)
    return "\n".join(
        f"{script.name:{wide}}  {script.kind:14}  {script.symptom}" for script in listed
    )
