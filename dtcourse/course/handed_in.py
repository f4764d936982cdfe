"""What students handed in: the notebooks of a folder, each with its author and its owner.

Whoever hands in may write to the folder while it is read, so each file is opened once, by its name in a folder that is
open already, and never through a link; what is then looked at (size, owner, kind) and what is read are one file. A file
that cannot be read costs its own grade, and nobody else's.
"""

from __future__ import annotations

import errno
import os
import pwd
import re
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

LARGEST = 32 << 20  # bytes of a notebook: with pictures in its outputs one has a few million
MOST = 8 * LARGEST  # bytes of all notebooks of one user, where that is not the one who grades
DEEPEST = 3  # folders below the folder
FLAGS = (
    os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
)  # a pipe opens at once, and is no file


@dataclass(frozen=True)
class Submission:
    """One file of a folder, read before anything runs.

    student: who it says that it is of: its folder, or the beginning of its name
    file:    its name in the folder, with escapes for what is no text
    owner:   the user that the system says put it there; "" where it could not be opened
    refused: why it could not be read, as a sentence
    """

    student: str
    file: str
    data: bytes
    owner: str = ""
    refused: str = ""


def submissions(folder: Path, out: Path | None = None) -> list[Submission]:
    """The notebooks in a folder: ana-02.ipynb, or ana/02-processes.ipynb. The student is the folder, or the name.

    Links are passed over: one could lead to another student's work, or out of the folder.
    Raises ValueError if the folder is not there, or holds no notebook.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder")
    found, sizes = [], Counter[str]()
    for one in sorted(_found(folder, out), key=lambda one: one.file):
        sizes[one.owner] += len(one.data)
        if one.owner != name_of(os.geteuid()) and sizes[one.owner] > MOST:
            too_much = (
                f"{one.owner} has handed in more than {MOST:,} bytes, and this is of the rest"
            )
            one = replace(one, data=b"", refused=too_much)
        found.append(one)
    if not found:
        raise ValueError(f"{folder} holds no notebook (*.ipynb)")
    return found


def _found(folder: Path, out: Path | None) -> Iterator[Submission]:
    closed: list[OSError] = []
    for place, folders, names, descriptor in os.fwalk(folder, onerror=closed.append):
        here = Path(place).relative_to(folder)
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and Path(place, name) != out and len(here.parts) < DEEPEST
        ]
        for name in names:
            if name.endswith(".ipynb") and not name.startswith("."):
                submission = _read(here / name, name, descriptor)
                if submission is not None:
                    yield submission
    for error in closed:
        inside = Path(os.fsdecode(error.filename or "")).name
        yield Submission(
            shown(inside), f"{shown(inside)}/", b"",
            refused=f"This folder could not be read ({error.strerror}): {_advice(inside)}",
        )  # fmt: skip


def _read(inside: Path, name: str, folder: int) -> Submission | None:
    """One file. None for a link, and for what is no file."""
    student = shown(inside.parts[0] if len(inside.parts) > 1 else _student(inside.stem))
    file = shown(inside.as_posix())
    try:
        descriptor = os.open(name, FLAGS, dir_fd=folder)
    except OSError as error:
        if error.errno in (
            errno.ELOOP,
            errno.ENOENT,
            errno.ENXIO,
        ):  # a link, gone meanwhile, a socket
            return None
        return Submission(
            student, file, b"",
            refused=f"This file could not be read ({error.strerror}): {_advice(file)}",
        )  # fmt: skip
    with open(descriptor, "rb") as opened:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            return None
        owner = name_of(about.st_uid)
        # One byte more than is taken, since it may grow: what is looked at first may be less than what is read.
        data = b"" if about.st_size > LARGEST else opened.read(LARGEST + 1)
        if about.st_size > LARGEST or len(data) > LARGEST:
            size = max(about.st_size, len(data))
            sentence = (
                f"This file has {size:,} bytes, and a notebook may have {LARGEST:,}: "
                "clear its outputs (Edit, Clear Outputs of All Cells) and hand it in again"
            )
            return Submission(student, file, b"", owner, sentence)
        return Submission(student, file, data, owner)


def shown(text: str) -> str:
    """One line that may go to a terminal and into a file: escapes for controls, and for bytes that were no UTF-8."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def _advice(name: str) -> str:
    return f"hand it in readable, as with `install -m 0644 NOTEBOOK .../{name}`"


def name_of(uid: int) -> str:
    """The user's name, or the number where the system knows none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _student(stem: str) -> str:
    """ana-02-processes-and-ranks is ana's."""
    name = re.split(r"[-_ ]*(?<!\d)\d\d(?!\d)", stem, maxsplit=1)[0].strip("-_ ")
    return name or stem
