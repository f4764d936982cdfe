"""The mark of a complete checkpoint: one file that is written last, with the size and the checksum of every other.

A folder without it is half a checkpoint, or one that nobody can tell from half of one. The mark sums up itself too, so
a damaged mark is not taken for another one.

    {"format": 1, "step": 200, "about": {...}, "files": {"model/__0_0.distcp": [4711, 2774351985], ...}}
    crc32 1234567890
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtcourse.checkpoint import files
from dtcourse.checkpoint.checksums import sum_of

NAME = "complete.json"
FORMAT = 1
Sums = dict[str, tuple[int, int]]  # by a file's path below the checkpoint: its bytes, their CRC-32


@dataclass(frozen=True)
class Mark:
    """What a mark says.

    step:  after which the checkpoint was taken
    sums:  of every other file
    about: what the run says of itself, which a resumed one is held against: plain values by name
    """

    step: int
    sums: Sums
    about: dict[str, Any]


class NotComplete(ValueError):
    """A folder that is no complete checkpoint, and why."""


def names_in(folder: Path) -> list[str]:
    """All files of a checkpoint but its mark, by their paths below it."""
    found = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    return sorted(name for name in found if name != NAME)


def sums_of(folder: Path, names: Iterable[str]) -> Sums:
    """Sizes and checksums of these files, as they are now."""
    return {name: ((folder / name).stat().st_size, sum_of(folder / name)) for name in names}


def write(folder: Path, mark: Mark) -> None:
    """Writes the mark of a folder in which all else is on the disk."""
    said = {"format": FORMAT, "step": mark.step, "about": mark.about, "files": mark.sums}
    line = json.dumps(said, sort_keys=True).encode()
    files.write_bytes(folder / NAME, line + f"\ncrc32 {zlib.crc32(line)}\n".encode())


def read(folder: Path) -> Mark:
    """The mark of a checkpoint. Raises NotComplete where there is none, or a damaged one, or one of another version."""
    try:
        content = (folder / NAME).read_bytes()
    except FileNotFoundError:
        raise NotComplete(_without_mark(folder)) from None
    except OSError as error:
        raise NotComplete(f"{folder / NAME} cannot be read: {error}") from None
    line, _, end = content.partition(b"\n")
    if end != f"crc32 {zlib.crc32(line)}\n".encode():
        raise NotComplete(
            f"{folder / NAME} is damaged: it ends with {end[:40].decode(errors='replace')!r}, and its first line has "
            f"the checksum {zlib.crc32(line)}"
        )
    said = json.loads(line)
    if said["format"] != FORMAT:
        raise NotComplete(
            f"{folder} has format {said['format']}, and this version of dtcourse reads format {FORMAT}: resume with "
            "the version that wrote it"
        )
    sums = {name: (size, value) for name, (size, value) in said["files"].items()}
    return Mark(said["step"], sums, said["about"])


def check(folder: Path, expected: Mapping[str, tuple[int, int]]) -> None:
    """Raises NotComplete, with the file's name and both numbers, for a file that is missing or not what was written."""
    for name, (size, value) in expected.items():
        path = folder / name
        if not path.is_file():
            raise NotComplete(f"{name} is missing in {folder}")
        found = path.stat().st_size
        if found != size:
            raise NotComplete(
                f"{name} in {folder} is damaged: it has {found} bytes, and {size} were written"
            )
        if (now := sum_of(path)) != value:
            raise NotComplete(
                f"{name} in {folder} is damaged: its checksum is {now:08x}, and was {value:08x} when it was written"
            )


def _without_mark(folder: Path) -> str:
    if (folder / ".metadata").exists():
        return (
            f"{folder} is a checkpoint without {NAME}, as dtcourse.checkpoint.save and PyTorch write them: nothing "
            "says that it is complete. If you know that it is, load it with dtcourse.checkpoint.load, and save it "
            "again with fault_tolerance.Checkpoints"
        )
    return f"{folder} has no {NAME}, so it is no complete checkpoint"
