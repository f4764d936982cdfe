"""What students handed in: the notebooks of a folder, each with its author."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Submission:
    """One file of a folder, read before anything runs."""

    student: str
    file: str
    data: bytes


def submissions(folder: Path, out: Path | None = None) -> list[Submission]:
    """The notebooks in a folder: ana-02.ipynb, or ana/02-processes.ipynb. The student is the folder, or the name.

    Raises ValueError if the folder is not there, or holds no notebook.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder")
    found = []
    for path in sorted(folder.rglob("*.ipynb")):
        inside = path.relative_to(folder)
        if any(part.startswith(".") for part in inside.parts) or (out and path.is_relative_to(out)):
            continue
        if path.is_symlink() or not path.is_file():
            continue  # a link could lead to another student's work, or out of the folder
        student = inside.parts[0] if len(inside.parts) > 1 else _student(inside.stem)
        found.append(Submission(student, inside.as_posix(), path.read_bytes()))
    if not found:
        raise ValueError(f"{folder} holds no notebook (*.ipynb)")
    return found


def _student(stem: str) -> str:
    """ana-02-processes-and-ranks is ana's."""
    name = re.split(r"[-_ ]*(?<!\d)\d\d(?!\d)", stem, maxsplit=1)[0].strip("-_ ")
    return name or stem
