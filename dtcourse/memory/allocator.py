"""A caching allocator, replayed on the sizes that a real training step asks for.

Giving memory back to CUDA waits for all running work, and asking for it takes longer than a small kernel; so PyTorch
asks for large segments, cuts blocks out of them, and keeps what is freed for the next request. This is its algorithm
(c10/cuda/CUDACachingAllocator.cpp) on numbers instead of memory, with its own constants: round up to 512 bytes;
requests up to 1 MiB come from segments of 2 MiB, up to 10 MiB from 20 MiB, larger ones from their own segment rounded
up to 2 MiB; take the smallest free block that fits, split off what is left, join free neighbours. Where the device is
full, give unused segments back and try again.

What it costs is fragmentation: bytes that are reserved and free, but in pieces too small for the request at hand.
Expandable segments (PYTORCH_ALLOC_CONF=expandable_segments:True) avoid most of it: one segment a pool, which grows by
mapping pages at its end.

    allocator = CachingAllocator(capacity=16e9)
    curve = replay(tracker.history.trace(), allocator)      # a recorded step, on any machine
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

KIB, MIB = 1024, 1024**2
ROUND = 512  # every block is a multiple of it
SMALL_REQUEST = MIB  # up to this from the small pool
SMALL_SEGMENT = 2 * MIB
MEDIUM_REQUEST = 10 * MIB
MEDIUM_SEGMENT = 20 * MIB
LARGE_ROUND = 2 * MIB


class OutOfMemory(MemoryError):
    """A request that the device cannot serve. Its text has the numbers that PyTorch's has."""


@dataclass(eq=False)
class Block:
    """A piece of a segment, linked to its neighbours in the same segment."""

    size: int
    small: bool
    segment: int  # which segment it lies in
    offset: int = 0  # where in it
    free: bool = True
    before: Block | None = None
    after: Block | None = None

    @property
    def whole(self) -> bool:
        """Whether it is all of its segment."""
        return self.before is None and self.after is None


class CachingAllocator:
    """alloc(bytes) -> Block, free(block); `allocated`, `reserved` and their peaks in bytes.

    capacity: what the device holds, in bytes; None: without end
    expandable: grow one segment a pool instead of adding segments
    """

    def __init__(self, capacity: float | None = None, *, expandable: bool = False) -> None:
        self.capacity = float("inf") if capacity is None else capacity
        self.expandable = expandable
        self.allocated = self.reserved = 0
        self.peak_allocated = self.peak_reserved = 0
        # Each would be a cudaMalloc: the slow thing that caching avoids.
        self.requests_to_device = 0
        self._free: set[Block] = set()
        self._segments: dict[int, Block] = {}  # number -> first block

    def alloc(self, size: int) -> Block:
        """A block of at least `size` bytes; OutOfMemory if there is no room,
        even after cached segments are given back.
        """
        if size < 1:
            raise ValueError(f"an allocation has at least one byte; got {size}")
        size = -(-size // ROUND) * ROUND
        small = size <= SMALL_REQUEST
        block = self.best_fit(size, small) or self._from_device(size, small)
        if block is None and self.empty_cache():
            block = self._from_device(size, small)
        if block is None:
            raise OutOfMemory(
                f"tried to allocate {_text(size)}: of {_text(self.capacity)} there are {_text(self.reserved)} "
                f"reserved, of which {_text(self.allocated)} are allocated and "
                f"{_text(self.reserved - self.allocated)} are free in pieces of at most "
                f"{_text(max((b.size for b in self._free), default=0))}"
            )
        block.free = False
        self._free.discard(block)
        self._split(block, size)
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def free(self, block: Block) -> None:
        """Puts a block back and joins it with free neighbours. The memory stays reserved."""
        if block.free:
            raise ValueError("this block is free already")
        self.allocated -= block.size
        block.free = True
        if block.before is not None and block.before.free:
            block = self._join(block.before, block)
        if block.after is not None and block.after.free:
            block = self._join(block, block.after)
        self._free.add(block)

    def empty_cache(self) -> int:
        """Gives back to the device whatever no block in use stands in the way of; returns the bytes.

        Without expandable segments these are whole free segments; with them, whole free pages at a segment's end
        (PyTorch unmaps those in its middle too).
        """
        given = 0
        for block in list(self._free):
            page = SMALL_SEGMENT if block.small else MEDIUM_SEGMENT
            size = block.size
            if not block.whole:
                size = size // page * page if self.expandable and block.after is None else 0
            given += size
            block.size -= size
            if block.size == 0:
                self._free.remove(block)
                if block.before is not None:
                    block.before.after = None
                else:
                    del self._segments[block.segment]
        self.reserved -= given
        return given

    @property
    def fragmentation(self) -> float:
        """The share of the reserved bytes that is not allocated."""
        return 1 - self.allocated / self.reserved if self.reserved else 0.0

    def segments(self) -> list[list[Block]]:
        """Each segment as its blocks in order of address."""
        found = []
        for block in self._segments.values():
            row: list[Block] = []
            at: Block | None = block
            while at is not None:
                row.append(at)
                at = at.after
            found.append(row)
        return found

    def best_fit(self, size: int, small: bool) -> Block | None:
        """The smallest free block of the pool with at least `size` bytes, the first of equals;
        None where there is none.
        """
        fitting = [b for b in self._free if b.small == small and b.size >= size]
        return min(fitting, key=lambda b: (b.size, b.segment, b.offset), default=None)

    def _from_device(self, size: int, small: bool) -> Block | None:
        if self.expandable:
            return self._extend(size, small)
        if small:
            segment = SMALL_SEGMENT
        elif size < MEDIUM_REQUEST:
            segment = MEDIUM_SEGMENT
        else:
            segment = -(-size // LARGE_ROUND) * LARGE_ROUND
        if self.reserved + segment > self.capacity:
            return None
        return self._reserve(segment, small, None)

    def _extend(self, size: int, small: bool) -> Block | None:
        """Maps pages at the end of the pool's one segment, beside what is free there already."""
        segment = next((s for s in self._segments.values() if s.small == small), None)
        last = segment
        while last is not None and last.after is not None:
            last = last.after
        there = last.size if last is not None and last.free else 0
        page = SMALL_SEGMENT if small else MEDIUM_SEGMENT
        missing = -(-(size - there) // page) * page
        if self.reserved + missing > self.capacity:
            return None
        block = self._reserve(missing, small, last)
        if last is not None and last.free:
            block = self._join(last, block)
        return block

    def _reserve(self, size: int, small: bool, after: Block | None) -> Block:
        self.requests_to_device += 1
        number = after.segment if after is not None else self.requests_to_device
        offset = after.offset + after.size if after is not None else 0
        block = Block(size, small, number, offset, before=after)
        if after is not None:
            after.after = block
        else:
            self._segments[number] = block
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return block

    def _split(self, block: Block, size: int) -> None:
        left = block.size - size
        worth = left >= ROUND if block.small or self.expandable else left > SMALL_REQUEST
        if not worth:
            return
        rest = Block(
            left, block.small, block.segment, block.offset + size, before=block, after=block.after
        )
        if block.after is not None:
            block.after.before = rest
        block.after, block.size = rest, size
        self._free.add(rest)

    def _join(self, one: Block, other: Block) -> Block:
        self._free -= {one, other}
        one.size += other.size
        one.after = other.after
        if other.after is not None:
            other.after.before = one
        return one


@dataclass(frozen=True)
class Replayed:
    """What became of a trace: bytes after each of its events."""

    allocated: list[int]
    reserved: list[int]
    requests_to_device: int

    @property
    def peak_allocated(self) -> int:
        return max(self.allocated, default=0)

    @property
    def peak_reserved(self) -> int:
        return max(self.reserved, default=0)

    @property
    def fragmentation(self) -> float:
        """At the fullest moment: the share of what was reserved that no tensor could use."""
        return 1 - self.peak_allocated / self.peak_reserved if self.peak_reserved else 0.0


def replay(
    trace: Iterable[tuple[str, int, int]], allocator: CachingAllocator | None = None
) -> Replayed:
    """Asks `allocator` for what a recorded step asked for, in its order.

    trace: ("alloc" or "free", which, bytes), as dtcourse.profiling.memory_history.History.trace gives it
    """
    allocator = allocator if allocator is not None else CachingAllocator()
    blocks: dict[int, Block] = {}
    allocated, reserved = [], []
    for what, which, size in trace:
        if what == "alloc":
            blocks[which] = allocator.alloc(size)
        elif which in blocks:
            allocator.free(blocks.pop(which))
        else:
            raise ValueError(f"the trace frees storage {which}, which it has not allocated")
        allocated.append(allocator.allocated)
        reserved.append(allocator.reserved)
    return Replayed(allocated, reserved, allocator.requests_to_device)


def _text(size: float) -> str:
    return f"{size / MIB:,.1f} MiB"
