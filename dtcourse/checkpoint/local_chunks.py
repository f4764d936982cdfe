"""What a rank keeps of a parameter, as torch.distributed.checkpoint understands it: chunks of a larger tensor.

A slice of a slice, along whatever dims, is a box of the parameter, with an offset and a size: PyTorch's checkpoints
call it a chunk. A run of elements in row-major order is a part of a row, then whole rows, then a part of a row again:
three of them. So a checkpoint holds parameters in their own shapes, cut as the ranks had them, and any number of ranks
can read any part of it, as can PyTorch without this course. Padding is in no chunk.

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

from dtcourse.parameters.cuts import Run, Sliced
from dtcourse.parameters.placement import Placement
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


def pieces_of(placed: Placement, kept: torch.Tensor) -> list[tuple[tuple[int, ...], torch.Tensor]]:
    """What a rank keeps of a parameter that was cut so: (where in the whole, a view into `kept`), box by box."""
    offsets, valid = [0] * len(placed.shape), list(placed.shape)
    for cut in placed.cuts:
        if isinstance(cut, Run):  # of a slice with padding, some of it may be in the run
            found, at = [], 0
            for where, sizes in chunks_of(cut.shape, *cut.mine):
                box = kept.reshape(-1)[at : at + prod(sizes)].view(sizes)
                at += prod(sizes)
                box = _within(box, [v - w for v, w in zip(valid, where, strict=True)])
                if box.numel():
                    found.append((tuple(o + w for o, w in zip(offsets, where, strict=True)), box))
            return found
        if isinstance(cut, Sliced):
            offsets[cut.dim] += cut.start
            valid[cut.dim] = max(0, min(cut.used, valid[cut.dim] - cut.start))
    box = _within(kept, valid)
    return [(tuple(offsets), box)] if box.numel() else []


def _within(box: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    for dim, size in enumerate(sizes):
        box = box.narrow(dim, 0, max(0, min(size, box.shape[dim])))
    return box


class LocalChunks(torch.Tensor):
    """What this rank keeps of a tensor, to be written to or read from a checkpoint.

    placed: how it was cut;  shape_of_whole: of the whole tensor;  kept: what is here, which reading fills;
    pieces: `pieces_of` it

    The three methods with underscores are what torch.distributed.checkpoint asks of a tensor that lies in parts.
    """

    placed: Placement
    shape_of_whole: torch.Size
    kept: torch.Tensor
    pieces: list[tuple[tuple[int, ...], torch.Tensor]]

    @staticmethod
    def of(placed: Placement, kept: torch.Tensor) -> LocalChunks:
        """Makes one; it shares the memory of `kept`, which is shaped as the parameter that is placed so."""
        made: LocalChunks = make_subclass(LocalChunks, kept.detach())
        made.placed, made.shape_of_whole, made.kept = placed, placed.shape, kept.detach()
        made.pieces = pieces_of(placed, made.kept)
        return made

    def size(self) -> torch.Size:  # type: ignore[override]
        """The whole tensor's, which the checkpoint's is compared with."""
        return self.shape_of_whole

    def __create_write_items__(self, name: str, _: Any) -> list[WriteItem]:
        properties = TensorProperties.create_from_tensor(self.kept)
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
            ChunkStorageMetadata(torch.Size(offsets), box.shape) for offsets, box in self.pieces
        ]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        for offsets, box in self.pieces:
            if index.offset is None or tuple(index.offset) == offsets:
                return box
        raise KeyError(f"this rank keeps no part of the tensor at {index.offset}")


def as_stored(placed: Placement, kept: torch.Tensor) -> torch.Tensor:
    """`kept`, shaped as what this rank keeps of a parameter, as the checkpoint is to have it."""
    return LocalChunks.of(placed, kept) if placed.over else kept


def kept_in(stored: Any) -> Any:
    """What `as_stored` was given."""
    return stored.kept if isinstance(stored, LocalChunks) else stored
