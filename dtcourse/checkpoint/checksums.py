"""Checksums of a checkpoint's files: a damaged byte in the middle of a tensor is a number like any other to who reads
it.

Every rank sums up a share of the files, when they are written and before they are read.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import torch.distributed as dist

from dtcourse.checkpoint import files
from dtcourse.parameters.agreement import raise_on_all_ranks
from dtcourse.parameters.replicas import Group

NAME = "checksums.json"


def write(folder: Path, group: Group = None) -> None:
    """Sums up what the ranks have written into the folder. Every rank must call it, when all have written."""
    mine = {name: sum_of(folder / name) for name in my_share(_data_files(folder), group)}
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group=group)
    together = {name: value for part in everyone for name, value in part.items()}

    def write_them() -> None:
        if dist.get_rank(group) == 0:
            with files.writing(folder / NAME, replace=True) as file:
                file.write(json.dumps(together, indent=1, sort_keys=True).encode())

    raise_on_all_ranks(write_them, group)


def check(folder: Path) -> None:
    """Raises ValueError if one of this rank's share of the files is damaged; PyTorch's own checkpoints have no sums."""
    if not (folder / NAME).exists():
        return
    expected = json.loads((folder / NAME).read_text())
    for name in my_share(sorted(expected)):
        if not (folder / name).exists():
            raise ValueError(f"{name} is missing in {folder}. Nothing was loaded.")
        if sum_of(folder / name) != expected[name]:
            raise ValueError(
                f"{name} in {folder} is damaged: its checksum is another. Nothing was loaded."
            )


def _data_files(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.glob("*.distcp"))


def my_share(names: list[str], group: Group = None) -> list[str]:
    """Those of the files that this rank sums up."""
    return names[dist.get_rank(group) :: dist.get_world_size(group)]


def sum_of(file: Path) -> int:
    """The CRC-32 of a file's bytes."""
    value = 0
    with file.open("rb") as opened:
        while block := opened.read(1 << 20):
            value = zlib.crc32(block, value)
    return value
