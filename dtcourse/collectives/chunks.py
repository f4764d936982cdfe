"""Blocks, chunks and scratch memory: what all algorithms need and none is about.

A *block* is the part of a vector that belongs to one rank (bounds[r] : bounds[r + 1]); p blocks make the vector.
A *chunk* is the part of a block that travels as one message; several are under way at a time.
Nothing empty is ever sent: a vector of 3 elements on 4 ranks has one empty block, and no message for it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, islice, pairwise
from typing import Any, NamedTuple

import torch

from dtcourse.collectives import p2p
from dtcourse.collectives.wire.transport import is_plain

# Tags of the algorithms' messages. A user's own send and recv (tag 0, 1, ...) on the same group stay apart from them.
TAG = 1 << 20


class Volume(NamedTuple):
    """What one rank sends: the number of messages, and the elements in all of them together."""

    messages: int
    elements: int

    def __add__(self, other: Volume) -> Volume:  # type: ignore[override]
        return Volume(self.messages + other.messages, self.elements + other.elements)


NOTHING = Volume(0, 0)


def even_bounds(elements: int, parts: int) -> list[int]:
    """Where `parts` blocks begin and end: parts + 1 offsets; the first elements % parts blocks are one longer."""
    short, longer = divmod(elements, parts)
    return [i * short + min(i, longer) for i in range(parts + 1)]


def bounds_of(sizes: Sequence[int]) -> list[int]:
    """Offsets of blocks that have these sizes: [2, 0, 3] gives [0, 2, 2, 5]."""
    return [0, *accumulate(sizes)]


def blocks_of(vector: torch.Tensor, bounds: Sequence[int]) -> list[torch.Tensor]:
    """Views of the blocks of a 1-D tensor."""
    return [vector[a:b] for a, b in pairwise(bounds)]


def chunks_of(block: torch.Tensor, chunk_bytes: int) -> list[torch.Tensor]:
    """Views of the chunks of a 1-D block; none where it is empty."""
    return (
        list(block.split(chunk_elements(block.element_size(), chunk_bytes))) if len(block) else []
    )


def chunk_elements(itemsize: int, chunk_bytes: int) -> int:
    """Elements of a full chunk, at least one."""
    if chunk_bytes < 1:
        raise ValueError(f"chunk_bytes={chunk_bytes}: a chunk has at least one byte")
    return max(1, chunk_bytes // itemsize)


def chunk_count(elements: int, itemsize: int, chunk_bytes: int) -> int:
    """How many messages a block of `elements` is cut into."""
    return -(-elements // chunk_elements(itemsize, chunk_bytes))


def one_message(elements: int) -> Volume:
    """One message of that many elements, or nothing where it is empty."""
    return Volume(1, elements) if elements else NOTHING


def add_up(parts: Iterator[Volume] | Sequence[Volume]) -> Volume:
    """The sum of several volumes."""
    result = NOTHING
    for part in parts:
        result = result + part
    return result


def receive_stream(
    targets: Iterable[torch.Tensor], src: int, group: Any, tag: int = TAG, ahead: int = 2
) -> Iterator[torch.Tensor]:
    """Receives one message after the other from `src` into `targets`, and yields each when it is there.

    `ahead` receives are always posted, so the next message is on its way while this one is worked on. A target may
    come again in the sequence after `ahead` others: by then, whoever took it from here is done with it.
    """
    coming = iter(targets)
    posted = deque((p2p.irecv(t, src, group, tag), t) for t in islice(coming, ahead))

    def in_order() -> Iterator[torch.Tensor]:
        while posted:
            work, target = posted.popleft()
            work.wait()
            yield target
            posted.extend((p2p.irecv(t, src, group, tag), t) for t in islice(coming, 1))

    return in_order()


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's elements as a contiguous 1-D tensor: a view where it can be, else a copy."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)


@contextmanager
def in_place(tensor: torch.Tensor, read: bool = True) -> Iterator[torch.Tensor]:
    """The tensor as a contiguous 1-D tensor to work on; what is written there is in `tensor` at the end.

    Autograd does not count it as an in-place change, as it does not count gloo's and NCCL's: they too write into the
    memory. So a buffer that is broadcast before each forward may be used twice before one backward.

    read: False where only the result matters, so that nothing has to be copied in first.
    """
    tensor = tensor.data  # the same memory; detach() would share the version counter as well
    if is_plain(tensor):
        yield tensor.view(-1)
        return
    work = (
        flat(tensor)
        if read
        else torch.empty(tensor.numel(), dtype=tensor.dtype, device=tensor.device)
    )
    yield work
    tensor.copy_(work.view(tensor.shape))


_kept = threading.local()
_KEPT_AT_MOST = 32 << 20  # bytes


def scratch(elements: int, like: torch.Tensor) -> torch.Tensor:
    """Uninitialised 1-D memory of `like`'s dtype and device, for use until this thread's next call.

    It is kept for the next call: the pages of 16 MB of fresh memory cost more time than adding 16 MB up.
    """
    nbytes = elements * like.element_size()
    if nbytes > _KEPT_AT_MOST:
        return torch.empty(elements, dtype=like.dtype, device=like.device)
    buffers = _kept.__dict__.setdefault("buffers", {})
    buffer = buffers.get(like.device)
    if buffer is None or buffer.numel() < nbytes:
        buffer = buffers[like.device] = torch.empty(nbytes, dtype=torch.uint8, device=like.device)
    return buffer[:nbytes].view(like.dtype)


def in_slots(
    chunks: Sequence[torch.Tensor], memory: torch.Tensor, slots: int
) -> Iterator[torch.Tensor]:
    """A place in `memory` for each chunk to come into: that many slots, used in turn.
    No chunk is longer than a slot.
    """
    length = len(memory) // slots
    for i, chunk in enumerate(chunks):
        start = i % slots * length
        yield memory[start : start + len(chunk)]


def sync_byte(like: torch.device | str = "cpu") -> torch.Tensor:
    """One byte: the message that says only "I am here"."""
    return torch.zeros(1, dtype=torch.uint8, device=like)
