"""A checkpoint is written while training goes on: what is in it, who waits, and who is told of an error.

Nothing here looks at a clock: the write is held until training has gone on, by an event.
"""

from __future__ import annotations

import threading
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import checkpoint, launch
from dtcourse.checkpoint import files
from dtcourse.fault_tolerance import (
    BackgroundCheckpoints,
    Checkpoints,
    NotSaved,
    TrainingState,
    folders,
)
from dtcourse.sharding import fully_shard
from dtcourse.verify import compare


def sharded(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    fully_shard(model)
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def take_step(model, optimizer):
    model(torch.ones(2, 3).double()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def values(model):
    return {name: p.to_local().detach().clone() for name, p in model.named_parameters()}


def moments(optimizer):
    state = optimizer.state_dict()["state"]
    return {n: slots["exp_avg"].to_local().clone() for n, slots in state.items()}


class Held:
    """Keeps the writing thread of this rank at its first operation until it is let go."""

    def __init__(self, events):
        self.go, self.events = threading.Event(), events

    def __call__(self, operation):
        if threading.current_thread() is not threading.main_thread():
            self.go.wait(60)
            self.events.append(operation.kind)


def train_meanwhile(root):
    """Saves after step 1 and takes two steps before a byte is written."""
    events, held = [], None
    model, optimizer = sharded(0)
    state = TrainingState.of(model, optimizer)
    held = Held(events)
    with files.watched(held), BackgroundCheckpoints(Checkpoints(root)) as saving:
        take_step(model, optimizer)
        right = values(model), moments(optimizer)
        assert saving.save(1, state.snapshot, state.about())
        for step in (2, 3):
            take_step(model, optimizer)
            events.append(step)
        held.go.set()
    (stall,) = saving.stalls
    assert stall.step == 1 and stall.waiting >= 0 and stall.copying > 0
    model, optimizer = sharded(1)
    state = TrainingState.of(model, optimizer)
    assert state.load(Checkpoints(root).latest()) == 1
    compare(values(model), right[0], 0.0, "value")
    compare(moments(optimizer), right[1], 0.0, "moment")
    return events


def test_what_is_written_is_what_was_there_at_the_save_though_training_has_gone_on(tmp_path):
    for rank, events in enumerate(launch(train_meanwhile, 2, tmp_path)):
        assert events[:2] == [2, 3]
        assert ("rename" in events) == (rank == 0)
        assert "write" in events


def two_saves(root, if_busy):
    """A second save while the first one is under way, on one rank alone: (saved, steps, warnings, order)."""
    events = []
    model, optimizer = sharded(0)
    state = TrainingState.of(model, optimizer)
    saving, held = BackgroundCheckpoints(Checkpoints(root), if_busy), Held(events)
    if dist.get_rank() == 1:
        held.go.set()  # its thread waits for rank 0's, in a collective

    def snapshot():
        events.append("copied")
        return state.snapshot()

    with warnings.catch_warnings(record=True) as said, files.watched(held):
        warnings.simplefilter("always")
        saving.save(1, snapshot)
        if if_busy == "wait":
            threading.Timer(0.2, held.go.set).start()
        second = saving.save(2, snapshot)
        held.go.set()
        saving.wait()
        third = saving.save(3, snapshot)
        saving.wait()
    told = [str(w.message) for w in said if "still being written" in str(w.message)]
    return second, third, folders.steps(root), told, events


@pytest.mark.parametrize(
    ("if_busy", "steps", "words"),
    [("wait", [1, 2, 3], "waits for it"), ("skip", [1, 3], "is left out")],
)
def test_a_second_save_waits_or_is_skipped_and_says_so(if_busy, steps, words, tmp_path):
    first, other = launch(two_saves, 2, tmp_path, if_busy)
    for second, third, found, _, _ in (first, other):
        assert (second, third, found) == (if_busy == "wait", True, steps)
    assert other[3] == []
    (sentence,) = first[3]
    assert (
        "the checkpoint after step 1 is still being written, so the one after step 2 " in sentence
    )
    assert words in sentence
    # It waits before it copies: a copy taken earlier would be of an older step than it says, and memory twice.
    copies = [n for n, event in enumerate(first[4]) if event == "copied"]
    assert len(copies) == len(steps)
    assert "rename" in first[4][copies[0] : copies[1]]


def failing(root, where):
    """The thread of rank 1 fails in the save after step 1; who is told, and when."""
    model, optimizer = sharded(0)
    state = TrainingState.of(model, optimizer)

    def fail(operation):
        if dist.get_rank() == 1 and operation.path.name == "own-1.pt":
            raise OSError("no space left")

    with files.watched(fail):
        saving = BackgroundCheckpoints(Checkpoints(root))
        saving.save(1, state.snapshot)
        saving._thread.join()
    take_step(model, optimizer)  # nobody is disturbed before
    with pytest.raises(NotSaved, match=r"after step 1 could not be written .* no space left"):
        if where == "next":
            saving.save(2, state.snapshot)
        elif where == "end":
            with saving:
                pass
    assert saving.save(3, state.snapshot)  # told once
    saving.wait()
    return folders.steps(root)


@pytest.mark.parametrize("where", ["next", "end"])
def test_an_error_of_the_thread_is_raised_by_the_next_save_or_at_the_end(where, tmp_path):
    for steps in launch(failing, 2, tmp_path, where):
        assert steps == [3]


def test_if_busy_is_one_of_two():
    with pytest.raises(ValueError, match='if_busy is "wait" or "skip"; got \'drop\''):
        BackgroundCheckpoints(None, "drop")


def plain_snapshot(root):
    """Without a TrainingState: a copy is written as `save` writes it, and PyTorch's names are in it."""
    model, optimizer = sharded(0)
    take_step(model, optimizer)
    copied = checkpoint.snapshot(model, optimizer)
    right = values(model)
    take_step(model, optimizer)
    checkpoint.folder.write(root / "later", copied)
    model, optimizer = sharded(1)
    checkpoint.load(root / "later", model, optimizer)
    compare(values(model), right, 0.0, "value")


def test_a_snapshot_is_a_copy(tmp_path):
    launch(plain_snapshot, 3, tmp_path)
