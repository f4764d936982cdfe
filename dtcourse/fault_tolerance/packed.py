"""A state as two tensors that a collective can send: what its nest looks like, and all its tensors end to end.

    header, flat = pack(state)         # uint8, both; len(flat) is the sum of the tensors' bytes
    unpack(header, flat)               # the same bits in the same nest, in memory of its own

Nothing is rounded and nothing is padded. The header holds the rest: names, shapes, dtypes, numbers. It is read as data
(weights_only), like a checkpoint: nothing in it is run.
"""

from __future__ import annotations

import io
from typing import Any

import torch
import torch.distributed as dist

from dtcourse import nested
from dtcourse.checkpoint.only_data import data_bytes
from dtcourse.parameters.replicas import Group
from dtcourse.tensor_bytes import as_bytes


def pack(state: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The header and the tensors' bytes, copied to the CPU.

    Raises ValueError for what a checkpoint cannot keep either: other than tensors, numbers, strings and containers.
    """
    pieces: list[torch.Tensor] = []
    shapes: list[tuple[tuple[int, ...], torch.dtype]] = []

    def taken(tensor: torch.Tensor) -> torch.Tensor:
        pieces.append(as_bytes(tensor).cpu())
        shapes.append((tuple(tensor.shape), tensor.dtype))
        return places[len(pieces) - 1]  # in its place, its number

    places = torch.arange(
        len(nested.tensors(state))
    )  # one storage, or each would have a header of its own
    skeleton = nested.map_tensors(taken, state)
    written = data_bytes((skeleton, shapes), "this state has something else than data", "sent")
    header = torch.frombuffer(bytearray(written), dtype=torch.uint8)
    return header, torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.uint8)


def unpack(header: torch.Tensor, flat: torch.Tensor) -> Any:
    """The state again. ValueError where the two do not belong together."""
    skeleton, shapes = torch.load(io.BytesIO(header.numpy().tobytes()), weights_only=True)
    lengths = [torch.Size(shape).numel() * dtype.itemsize for shape, dtype in shapes]
    if sum(lengths) != len(flat):
        raise ValueError(
            f"the header is of {len(shapes)} tensors with {sum(lengths)} bytes, and {len(flat)} bytes are here"
        )
    # A clone each: memory of its own, so that a dtype's alignment is kept and nobody writes to the copy.
    pieces = [part.clone() for part in flat.split(lengths)]

    def given(number: torch.Tensor) -> torch.Tensor:
        shape, dtype = shapes[int(number)]
        return pieces[int(number)].view(dtype).view(shape)

    return nested.map_tensors(given, skeleton)


def copied(state: Any) -> Any:
    """The same nest with tensors of its own, where they were."""
    return nested.map_tensors(lambda tensor: tensor.detach().clone(), state)


def broadcast(state: Any, src: int, group: Group = None) -> Any:
    """The state of group rank `src`, on every rank: three broadcasts, of two lengths, the header and the tensors."""
    mine = dist.get_rank(group) == src
    header, flat = pack(state) if mine else (torch.empty(0), torch.empty(0))
    lengths = torch.tensor([len(header), len(flat)], dtype=torch.int64)
    dist.broadcast(lengths, group=group, group_src=src)
    if not mine:
        header, flat = (torch.empty(n, dtype=torch.uint8) for n in lengths.tolist())
    dist.broadcast(header, group=group, group_src=src)
    if len(flat):
        dist.broadcast(flat, group=group, group_src=src)
    return unpack(header, flat)
