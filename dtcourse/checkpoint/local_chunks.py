"""What a rank keeps of a parameter, as torch.distributed.checkpoint understands it: chunks of a larger tensor.

It is a run of elements of the parameter in row-major order. Such a run is a part of a row, then whole rows, then a
part of a row again. Each of the three is a box of the tensor, with an offset and a size: PyTorch's checkpoints call it
a chunk. So a checkpoint holds parameters in their own shapes, cut as the ranks had them, and any number of ranks can
read any part of it, as can PyTorch without this course.

    shape (3, 4), elements 2..10:      . . x x      chunk at (0, 2) of size (1, 2)
                                       x x x x      chunk at (1, 0) of size (1, 4)
                                       x x . .      chunk at (2, 0) of size (1, 2)

Nothing is copied and nothing is sent: each chunk is a view into the shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from dtcourse.torch_private import make_subclass

Chunk = tuple[tuple[int, ...], tuple[int, ...]]  # offsets, sizes


def chunks_of(shape: Sequence[int], start: int, end: int) -> list[Chunk]:
    """The elements start..end of a tensor of this shape, in row-major order, as chunks in the same order."""
    if start >= end:
        return []
    if not shape:
        return [((), ())]
    if len(shape) == 1:
        return [((start,), (end - start,))]
    row = prod(shape[1:])
    first, last = start // row, (end - 1) // row
    if first == last:  # within one row: the question one dimension lower
        inner = chunks_of(shape[1:], start - first * row, end - first * row)
        return [((first, *offsets), (1, *sizes)) for offsets, sizes in inner]
    found = []
    if start % row:
        found += chunks_of(shape, start, (first + 1) * row)
        first += 1
    whole_end = end // row
    if first < whole_end:
        found.append(((first,) + (0,) * (len(shape) - 1), (whole_end - first, *shape[1:])))
    if end % row:
        found += chunks_of(shape, whole_end * row, end)
    return found


class LocalChunks(torch.Tensor):
    """A run of a tensor's elements, to be written to or read from a checkpoint.

    shape: of the whole tensor;  start: where the run begins;  run: its elements, shape (n,), which reading fills

    The three methods with underscores are what torch.distributed.checkpoint asks of a tensor that lies in parts.
    """

    shape_of_whole: torch.Size
    run: torch.Tensor
    chunks: list[Chunk]

    @staticmethod
    def of(shape: Sequence[int], start: int, run: torch.Tensor) -> LocalChunks:
        """Makes one; it shares the run's memory."""
        made: LocalChunks = make_subclass(LocalChunks, run.detach())
        made.shape_of_whole, made.run = torch.Size(shape), run.detach()
        made.chunks = chunks_of(made.shape_of_whole, start, start + run.numel())
        return made

    def size(self) -> torch.Size:  # type: ignore[override]
        """The whole tensor's, which the checkpoint's is compared with."""
        return self.shape_of_whole

    def __create_write_items__(self, name: str, _: Any) -> list[WriteItem]:
        properties = TensorProperties.create_from_tensor(self.run)
        return [
            WriteItem(
                index=MetadataIndex(name, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=chunk, properties=properties, size=self.shape_of_whole
                ),
            )
            for chunk in self.__create_chunk_list__()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [
            ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
            for offsets, sizes in self.chunks
        ]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        at = 0
        for offsets, sizes in self.chunks:
            if index.offset is None or tuple(index.offset) == offsets:
                return self.run[at : at + prod(sizes)].view(sizes)
            at += prod(sizes)
        raise KeyError(f"this rank keeps no part of the tensor at {index.offset}")
