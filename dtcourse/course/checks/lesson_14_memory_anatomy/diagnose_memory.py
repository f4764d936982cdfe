"""Storages that are born and die in a run's steps: what is wrong with its memory, and where?"""

from __future__ import annotations

import gc
from functools import cache

import torch
import torch.nn.functional as F

from dtcourse.course.judging import Answer, Exercise, require_diagnoses
from dtcourse.memory.allocator import CachingAllocator
from dtcourse.models import MLP
from dtcourse.profiling.memory_tracker import MemoryTracker
from dtcourse.torch_private import fake_tensors

DIAGNOSE = Exercise(
    "diagnose_memory",
    lesson="14",
    title="What is wrong with this run's memory?",
    takes=("diagnose_memory",),
    target="15 of 15 runs, of 8 steps each",
)

Diagnosis = tuple[str, int | None]
Steps = list[list[tuple[int, str, int]]]  # by step: storage, operator, bytes gained or lost
Run = tuple[Steps, list[int], int]  # steps, bytes reserved at most by the end of each, capacity
STEPS = 8
# Width, samples, and where the mistake is: for "cycles" how many steps the longest wait is.
SIZES = ((128, 20_000, 2), (160, 30_000, 4), (192, 16_000, 3))


class _Holder:
    """An object that refers to itself, and to a tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.myself = tensor, self


def _samples(kind: str, most: int, where: int) -> list[int]:
    """Of each step. Those of "fragments" grow; in "too large" one step has three times as many."""
    if kind == "fragments":
        return [most * (STEPS + step) // (2 * STEPS) for step in range(STEPS)]
    if kind == "too large":
        return [most // 3 if step != where else most for step in range(STEPS)]
    return [most - 100 * (step % 3) for step in range(STEPS)]


def _tracked(kind: str, width: int, most: int, where: int) -> Steps:
    """Training steps of an MLP with Adam, on fake tensors, with a mistake."""
    kept: list[torch.Tensor] = []
    marks: list[int] = []
    with fake_tensors():
        model = MLP((width, 2 * width, 2 * width, 64))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        with MemoryTracker(model, optimizer) as tracker:
            for step, samples in enumerate(_samples(kind, most, where)):
                marks.append(len(tracker.history.events) if step else 0)
                optimizer.zero_grad()
                x, y = torch.zeros(samples, width), torch.zeros(samples, dtype=torch.int64)
                logits = model(x)
                F.cross_entropy(logits, y).backward()
                optimizer.step()
                if kind == "kept" and step >= where:
                    kept.append(model(x).sum())  # with its graph
                if kind == "cycles":
                    _Holder(logits.detach())
                    if (step + 1) % (where + 1) == 0:
                        gc.collect()
    history = tracker.history
    events = [
        (number, history.allocations[number].op, change) for change, number, _ in history.events
    ]
    ends = [*marks[1:], len(events)]
    return [
        [event for event in events[start:end] if event[2]]
        for start, end in zip(marks, ends, strict=True)
    ]


def _reserved(steps: Steps) -> list[int]:
    """The most bytes that the caching allocator has reserved by the end of each step."""
    allocator, blocks, found = CachingAllocator(), {}, []
    for events in steps:
        for storage, _, change in events:
            if change > 0:
                blocks[storage] = allocator.alloc(change)
            else:
                allocator.free(blocks.pop(storage))
        found.append(allocator.peak_reserved)
    return found


def _peaks(steps: Steps) -> list[int]:
    """The most live bytes of each step."""
    live, found = 0, []
    for events in steps:
        most = live
        for _, _, change in events:
            live += change
            most = max(most, live)
        found.append(most)
    return found


def run_of(kind: str, size: tuple[int, int, int]) -> tuple[Run, Diagnosis]:
    """A run with that mistake, and what is to be said of it."""
    steps = _tracked(kind, *size)
    reserved, peaks, where = _reserved(steps), _peaks(steps), size[2]
    if kind == "too large":
        others = max(peak for step, peak in enumerate(peaks) if step != where)
        return (steps, reserved, (others + peaks[where]) // 2), (kind, where)
    if kind == "fragments":
        capacity = (max(peaks) + reserved[-1]) // 2
        return (steps, reserved, capacity), (
            kind,
            next(step for step, held in enumerate(reserved) if held > capacity),
        )
    capacity = max(reserved) + reserved[0]
    return (steps, reserved, capacity), (kind, None if kind == "healthy" else where)


@cache
def cases() -> dict[str, list[tuple[Run, Diagnosis]]]:
    """Three runs of each kind, always the same ones."""
    collects = gc.isenabled()
    gc.collect()
    gc.disable()  # what waits in cycles is to wait for the run's own collections
    try:
        return {
            kind: [run_of(kind, size) for size in SIZES]
            for kind in ("healthy", "kept", "cycles", "too large", "fragments")
        }
    finally:
        if collects:
            gc.enable()


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_diagnoses(
        answer,
        cases()[kind] + cases()["healthy"],
        describe=lambda steps, reserved, capacity: (
            f"A run of {len(steps)} steps, with at most {max(_peaks(steps)):,} bytes alive and {max(reserved):,} "
            f"reserved of {capacity:,}"
        ),
        hint=hint,
        healthy="What stays there is right: weights, the optimizer's states from the first step on, and each step's "
        "gradients until the next step (the last one's until the end).",
        example=("kept", 2),
    )


@DIAGNOSE.check("storages that are kept", points=3)
def check_kept(answer: Answer) -> None:
    """From some step on, every step leaves a graph."""
    _require(
        answer,
        "kept",
        "Which storages are never freed, and in which step is the first of them born? The first step leaves the "
        "optimizer's states.",
    )


@DIAGNOSE.check("storages that wait for the garbage collector", points=2)
def check_cycles(answer: Answer) -> None:
    """They are freed, some steps late; those of the last steps not any more."""
    _require(
        answer,
        "cycles",
        "These storages are freed, steps after they were born. How long does the longest wait take? (The last ones "
        "still wait.)",
    )


@DIAGNOSE.check("a step that is too large", points=2)
def check_too_large(answer: Answer) -> None:
    """Live bytes pass the capacity in the middle of a step."""
    _require(
        answer,
        "too large",
        "What is the most that is alive at any moment of a step, and does that fit? Reserved bytes follow live ones.",
    )


@DIAGNOSE.check("memory in pieces", points=2)
def check_fragments(answer: Answer) -> None:
    """Live bytes fit, reserved ones do not."""
    _require(
        answer,
        "fragments",
        "All that is alive would fit at any moment. Does what is reserved, and from which step on not?",
    )
