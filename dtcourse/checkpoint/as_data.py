"""Reading a checkpoint as data: nothing in it is run, whoever wrote it.

A pickle is a program: it may name any function of any module, and who unpickles it calls that. PyTorch reads tensors by
weights_only, and neither the index of a checkpoint (.metadata) nor its small values (an optimizer's options). Here both
may hold what such files consist of, and anything else is refused before it is made.
"""

from __future__ import annotations

import io
import pathlib
import pickle
from enum import Enum
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader
from torch.distributed.checkpoint import filesystem as dcp_filesystem
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem

OWN = {one.__name__: one for one in (dcp_metadata, dcp_filesystem)}
# Python says pathlib._local from 3.13 on, which older ones do not have.
MODULES = {**OWN, "torch": torch, "pathlib": pathlib, "pathlib._local": pathlib}
VALUES = (torch.dtype, torch.layout, torch.memory_format)


class _Index(pickle.Unpickler):
    """Makes what an index consists of: PyTorch's descriptions of tensors and files, shapes, dtypes, paths."""

    def find_class(self, module: str, name: str) -> Any:
        """Raises UnpicklingError for all else, and imports nothing to find that out."""
        if "." not in name:
            if (module, name) == ("builtins", "getattr"):
                return _member
            if (module, name) == ("torch.serialization", "_get_layout"):
                return super().find_class(module, name)
            found = getattr(MODULES.get(module), name, None)
            own = module in OWN and isinstance(found, type) and found.__module__ == module
            path = isinstance(found, type) and issubclass(found, pathlib.PurePath)
            if own or path or found is torch.Size or isinstance(found, VALUES):
                return found
        raise _refused(f"{module}.{name}")


def _member(*named: Any) -> Enum:
    """The member of an enum: Python 3.11.0 to 3.11.3 pickle it as getattr(enum, its name)."""
    match named:
        case type() as enum, str() as name if issubclass(enum, Enum) and name in enum.__members__:
            return enum.__members__[name]
    raise _refused(f"getattr{named}")


def _refused(what: str) -> pickle.UnpicklingError:
    return pickle.UnpicklingError(
        f"the index names {what}, which no index needs: reading it would run what somebody has put there"
    )


class DataReader(FileSystemReader):
    """PyTorch's reader, of which the index is data."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The index of the whole checkpoint."""
        with self.fs.create_stream(self.fs.concat_path(self.path, ".metadata"), "rb") as file:
            metadata: Metadata = _Index(file).load()  # type: ignore[arg-type]
        if not isinstance(metadata, Metadata):
            raise pickle.UnpicklingError(f"the index is a {type(metadata).__name__}")
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class DataPlanner(DefaultLoadPlanner):
    """PyTorch's planner, of which small values are data."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Reads one, when weights_only has found nothing else in it."""
        try:
            torch.load(value, weights_only=True)
        except pickle.UnpicklingError as error:
            raise ValueError(
                f"{read_item.storage_index.fqn} holds more than numbers, strings and tensors: {error}"
            ) from None
        value.seek(0)
        super().load_bytes(read_item, value)
