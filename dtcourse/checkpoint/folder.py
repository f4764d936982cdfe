"""A folder with a checkpoint: written by all ranks together, and read beside what is there, all of it or nothing.

The format is PyTorch's own (torch.distributed.checkpoint), with checksums of its files beside it. Every rank calls each
function; what one of them finds wrong, all raise (parameters/agreement.py), so none goes on with half a model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata

from dtcourse.checkpoint import checksums, files
from dtcourse.checkpoint.as_data import DataPlanner, DataReader
from dtcourse.parameters.agreement import raise_on_all_ranks
from dtcourse.parameters.replicas import Group


def write(folder: str | Path, state: dict[str, Any], group: Group = None) -> None:
    """Writes what the ranks have, each its own part, into a folder that all ranks share.

    Raises OSError on all ranks where one of them cannot write: the disk is full, say.
    """
    writer = dcp.FileSystemWriter(
        str(folder), sync_files=False
    )  # each file is synced as it is closed
    writer.fs = files.WatchedFileSystem()
    try:
        dcp.save(state, storage_writer=writer, process_group=group)
    except CheckpointException as failure:  # raised on all ranks, with what each of them met
        rank, (error, _) = next(iter(failure.failures.items()))
        raise OSError(
            f"{folder} could not be written: {type(error).__name__} on rank {rank}: {error}"
        ) from None
    checksums.write(Path(folder), group)


def open_whole(folder: str | Path) -> Metadata:
    """What the checkpoint in a folder holds. Raises ValueError on all ranks where there is none,
    or a file is damaged.
    """
    metadata = raise_on_all_ranks(lambda: _metadata(Path(folder)))
    raise_on_all_ranks(lambda: checksums.check(Path(folder)))
    return metadata


def read(folder: str | Path, staged: dict[str, Any], check: Callable[[], None]) -> None:
    """Fills `staged`, tensors (or LocalChunks of them) by the checkpoint's keys; then nobody's model has changed yet.

    check: looks at what was read; where it raises, on any rank, all raise
    """

    def attempt() -> None:
        try:
            dcp.load(staged, storage_reader=DataReader(str(folder)), planner=DataPlanner())
        except CheckpointException as failure:  # raised on all ranks, with what each of them met
            rank, (error, _) = next(iter(failure.failures.items()))
            raise ValueError(
                f"{folder} could not be read, and nothing was loaded: {type(error).__name__} on rank {rank}: {error}"
            ) from None
        check()

    raise_on_all_ranks(attempt)


def shapes_below(metadata: Metadata, prefix: str) -> dict[str, tuple[int, ...]]:
    """Shapes of what a checkpoint has under `prefix`, by the names that follow it; () for what is no tensor."""
    return {
        key.removeprefix(prefix): tuple(getattr(value, "size", ()))
        for key, value in metadata.state_dict_metadata.items()
        if key.startswith(prefix)
    }


def _metadata(folder: Path) -> Metadata:
    try:
        return DataReader(str(folder)).read_metadata()
    except Exception as error:
        raise ValueError(f"{folder} holds no checkpoint that can be read: {error}") from error
