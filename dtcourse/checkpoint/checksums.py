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

NAME = "checksums.json"


def write(folder: Path) -> None:
    """Sums up what the ranks have written into the folder. Every rank must call it, when all have written."""
    mine = {name: _sum(folder / name) for name in _my_share(_data_files(folder))}
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    if dist.get_rank() == 0:
        together = {name: value for part in everyone for name, value in part.items()}
        (folder / NAME).write_text(json.dumps(together, indent=1, sort_keys=True))
    dist.barrier()


def check(folder: Path) -> None:
    """Raises ValueError if one of this rank's share of the files is damaged; PyTorch's own checkpoints have no sums."""
    if not (folder / NAME).exists():
        return
    expected = json.loads((folder / NAME).read_text())
    for name in _my_share(sorted(expected)):
        if not (folder / name).exists():
            raise ValueError(f"{name} is missing in {folder}. Nothing was loaded.")
        if _sum(folder / name) != expected[name]:
            raise ValueError(
                f"{name} in {folder} is damaged: its checksum is another. Nothing was loaded."
            )


def _data_files(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.glob("*.distcp"))


def _my_share(names: list[str]) -> list[str]:
    return names[dist.get_rank() :: dist.get_world_size()]


def _sum(file: Path) -> int:
    value = 0
    with file.open("rb") as opened:
        while block := opened.read(1 << 20):
            value = zlib.crc32(block, value)
    return value
