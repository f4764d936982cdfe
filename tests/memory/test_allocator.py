"""The caching allocator: its constants, its invariants for any trace, fragmentation,
and CUDA's own where there is one."""

from __future__ import annotations

import gc
import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dtcourse import device
from dtcourse.memory.allocator import (
    MIB,
    ROUND,
    CachingAllocator,
    OutOfMemory,
    replay,
)
from dtcourse.memory.cycles import tensors_in_cycles
from dtcourse.models import Transformer, TransformerConfig
from dtcourse.profiling.memory_tracker import MemoryTracker

CONFIG = TransformerConfig(vocab=256, d_model=64, n_layers=2, n_heads=4, max_length=160)


def recorded(lengths: list[int], on: torch.device | str = "cpu") -> list[tuple[str, int, int]]:
    """The trace of training steps on sequences of these lengths."""
    model = Transformer(CONFIG).to(on)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with MemoryTracker(model, optimizer) as tracker:
        for length in lengths:
            tokens = torch.zeros(8, length, dtype=torch.int64, device=on)
            model.loss(tokens, tokens).backward()
            optimizer.step()
            optimizer.zero_grad()
    return tracker.history.trace()


@pytest.mark.parametrize(
    ("size", "block", "segment"),
    [
        (1, ROUND, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 11 * MIB, 12 * MIB),  # 1 MiB left over is not worth a block of its own ...
    ],
)
def test_the_sizes_of_pytorchs_allocator(size, block, segment):
    allocator = CachingAllocator()
    got = allocator.alloc(size)
    assert allocator.reserved == segment
    # ... so the request gets it as well.
    assert got.size == (12 * MIB if size == 11 * MIB else block)


def test_small_and_large_requests_do_not_share_segments():
    allocator = CachingAllocator()
    allocator.alloc(3 * MIB)  # leaves 17 MiB free in its segment
    allocator.alloc(1000)
    assert allocator.reserved == 22 * MIB


def test_the_smallest_free_block_that_fits_is_taken():
    allocator = CachingAllocator()
    a, _, b, _ = (allocator.alloc(n * MIB) for n in (6, 2, 3, 2))
    allocator.free(a)
    allocator.free(b)
    before = allocator.reserved
    assert allocator.alloc(3 * MIB) is b
    assert allocator.reserved == before


def test_best_fit_looks_in_one_pool_and_takes_the_first_of_equals():
    allocator = CachingAllocator()
    blocks = [allocator.alloc(n * MIB) for n in (6, 2, 3, 2, 3, 4)]
    for i in (0, 2, 4):
        allocator.free(blocks[i])
    assert allocator.best_fit(3 * MIB, small=False) is blocks[2]
    assert allocator.best_fit(3 * MIB + 1, small=False) is blocks[0]
    assert allocator.best_fit(7 * MIB, small=False) is None
    assert allocator.best_fit(512, small=True) is None


def test_neighbours_that_are_free_become_one_block():
    allocator = CachingAllocator()
    blocks = [allocator.alloc(5 * MIB) for _ in range(4)]
    assert allocator.reserved == 20 * MIB
    for i in (1, 3, 0, 2):
        allocator.free(blocks[i])
    assert [[b.size for b in s] for s in allocator.segments()] == [[20 * MIB]]
    assert allocator.alloc(20 * MIB).size == 20 * MIB
    assert allocator.requests_to_device == 1


def test_fragmentation_is_out_of_memory_with_enough_memory_free():
    def fill(allocator: CachingAllocator) -> None:
        blocks = [allocator.alloc(10 * MIB) for _ in range(10)]
        for block in blocks[::2]:
            allocator.free(block)

    allocator = CachingAllocator(100 * MIB, expandable=True)  # one segment, with holes
    fill(allocator)
    assert allocator.reserved - allocator.allocated == 50 * MIB
    with pytest.raises(
        OutOfMemory,
        match=r"tried to allocate 20\.0 MiB.*50\.0 MiB are free in pieces of at most 10\.0",
    ):
        allocator.alloc(20 * MIB)
    # Segments that are free as a whole go back to the device, and then there is room.
    allocator = CachingAllocator(100 * MIB)
    fill(allocator)
    assert allocator.alloc(20 * MIB).size == 20 * MIB


def test_expandable_segments_do_not_strand_what_was_a_little_too_small():
    """Sequences that grow: each needs a little more than was freed. Segments of fixed size pile up."""

    def grow(allocator: CachingAllocator) -> None:
        for step in range(12):
            blocks = [allocator.alloc((20 + 2 * step) * MIB + 1) for _ in range(4)]
            for block in blocks:
                allocator.free(block)

    fixed, expandable = CachingAllocator(), CachingAllocator(expandable=True)
    grow(fixed)
    grow(expandable)
    assert fixed.peak_allocated == pytest.approx(expandable.peak_allocated, rel=0.05)
    assert expandable.peak_reserved < 1.2 * expandable.peak_allocated
    assert fixed.peak_reserved > 3 * fixed.peak_allocated


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 30 * MIB)), max_size=60), st.booleans())
@settings(max_examples=60)
def test_whatever_is_asked_the_books_balance(requests, expandable):
    allocator, held = CachingAllocator(expandable=expandable), []
    for give_back, size in requests:
        if give_back and held:
            allocator.free(held.pop(size % len(held)))
        else:
            held.append(allocator.alloc(size))
            assert held[-1].size >= size
        blocks = [b for segment in allocator.segments() for b in segment]
        assert sum(b.size for b in blocks) == allocator.reserved
        assert sum(b.size for b in blocks if not b.free) == allocator.allocated
        assert {id(b) for b in blocks if not b.free} == {id(b) for b in held}
        for segment in allocator.segments():
            ends = [b.offset + b.size for b in segment]
            assert [b.offset for b in segment] == [0, *ends[:-1]]
            assert not any(a.free and b.free for a, b in itertools.pairwise(segment))
    for block in held:
        allocator.free(block)
    assert allocator.allocated == 0
    assert allocator.empty_cache() > 0 or not requests
    assert allocator.reserved == 0


def test_a_recorded_step_costs_the_device_nothing_the_second_time():
    one = replay(recorded([128]))
    three = replay(recorded([128, 128, 128]))
    assert three.requests_to_device == one.requests_to_device
    assert three.peak_reserved == one.peak_reserved
    assert one.fragmentation == 1 - one.peak_allocated / one.peak_reserved > 0


def test_varying_lengths_fragment():
    lengths = random.Random(0).choices(range(16, 161), k=8)
    varied, fixed = recorded(lengths), recorded([160])
    expandable = replay(varied, CachingAllocator(expandable=True))
    assert replay(varied).peak_allocated <= 1.05 * replay(fixed).peak_allocated
    assert replay(varied).peak_reserved >= expandable.peak_reserved


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: CachingAllocator().alloc(0), "at least one byte"),
        (lambda: replay([("free", 3, 10)]), "frees storage 3"),
    ],
)
def test_mistakes_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()


def test_a_block_is_freed_once():
    allocator = CachingAllocator()
    block = allocator.alloc(10)
    allocator.free(block)
    with pytest.raises(ValueError, match="free already"):
        allocator.free(block)


def test_only_circles_wait_for_the_garbage_collector():
    class Layer:
        pass

    gc.collect()
    gc.disable()  # so that none comes by in between
    try:
        straight = Layer()
        straight.activations = torch.zeros(1000)
        del straight
        assert tensors_in_cycles() == []
        circle = Layer()
        circle.activations = torch.zeros(1000)
        circle.me = circle
        del circle
        (found,) = tensors_in_cycles()
        assert (found.bytes, found.shape) == (4000, (1000,))
        assert tensors_in_cycles() == []  # and it is gone
        assert not gc.get_debug()
    finally:
        gc.enable()


def test_an_exception_that_is_kept_holds_the_tensors_of_its_frames():
    def step() -> None:
        kept = None
        activations = torch.zeros(500)
        try:
            raise RuntimeError(activations.shape)
        except RuntimeError as error:
            kept = error  # traceback -> this frame -> kept
        assert kept is not None

    gc.collect()
    step()
    assert [t.bytes for t in tensors_in_cycles()] == [2000]


@pytest.mark.gpu
@pytest.mark.parametrize("lengths", [[128] * 3, [32, 160, 64, 150, 96, 128]])
def test_cudas_allocator_reserves_what_the_replay_says(lengths):
    """The same requests to torch.cuda, one by one, in a process of its own, where nothing is cached yet."""
    from dtcourse import launch

    trace = recorded(lengths)

    def ask(trace):
        on, held, reserved = device.current(), {}, []
        for what, which, size in trace:
            if what == "alloc":
                held[which] = torch.empty(size, dtype=torch.uint8, device=on)
            else:
                del held[which]
            reserved.append(device.memory_reserved(on))
        return reserved

    assert launch(ask, 1, trace, device="cuda")[0] == replay(trace).reserved
