"""What can go wrong between two checkpoints: several interruptions, ends of epochs, uneven ends, workers that die."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from dtcourse import data, launch
from dtcourse.data import (
    DistributedSampler,
    ResumableLoader,
    ShardedStream,
    TokenBatchSampler,
    write_shards,
)
from dtcourse.data import loader as loading

segments = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(0, 4)), max_size=4)


def loaders(dataset, ranks, batch, padding, state):
    made = []
    for rank in range(ranks):
        sampler = DistributedSampler(dataset, ranks, rank, seed=5, padding=padding)
        made.append(ResumableLoader(dataset, sampler, batch))
        if state is not None:
            made[-1].load_state_dict(state)
    return made


@given(total=st.integers(1, 60), plan=segments, last=st.integers(1, 5), who=st.integers(0, 4))
def test_any_number_of_interruptions_any_world_sizes_and_any_ranks_checkpoint(
    total, plan, last, who
):
    """Each segment: (ranks, batch size, steps), in lock-step to the end of the epoch and past it. One rank's
    checkpoint is kept, whichever it is: with "exact" some ranks run out a step before the others.
    """
    dataset, read, state = list(range(total)), [], None
    for ranks, batch, steps in [*plan, (last, 3, 100)]:
        parts = loaders(dataset, ranks, batch, "exact", state)
        iterators = [iter(part) for part in parts]
        for _ in range(steps):
            for iterator in iterators:
                read += next(iterator, torch.empty(0)).tolist()
        state = parts[who % ranks].state_dict()
        assert all(part.state_dict() == state for part in parts)
    assert Counter(read) == Counter(dataset)


@given(total=st.integers(8, 60), steps=st.integers(0, 4))
def test_the_global_batches_are_the_same_on_any_number_of_ranks(total, steps):
    """So training goes on as if nothing had happened, wherever ranks times batch size stays the same."""

    def global_batches(ranks):
        parts = loaders(list(range(total)), ranks, 12 // ranks, "drop", None)
        return [sorted(torch.cat(b).tolist()) for b, _ in zip(zip(*parts), range(steps))]  # noqa: B905

    one = global_batches(1)
    for ranks in (2, 3, 4, 6):
        other = global_batches(ranks)
        full = total // 12
        assert one[:full] == other[:full]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_that_is_over_begins_again_and_one_that_was_resumed_does_not(workers):
    """Without set_epoch the order is the same, as with PyTorch's sampler: a mistake, but no empty epoch."""
    dataset = list(range(10))
    loader = ResumableLoader(dataset, DistributedSampler(dataset, 2, 1), 2, num_workers=workers)
    first = torch.cat(list(loader)).tolist()
    assert len(first) == 5
    at_the_end = loader.state_dict()
    assert torch.cat(list(loader)).tolist() == first
    loader.set_epoch(1)
    assert torch.cat(list(loader)).tolist() != first

    resumed = ResumableLoader(dataset, DistributedSampler(dataset, 2, 1), 2)
    resumed.load_state_dict(at_the_end)
    resumed.set_epoch(0)  # what a training loop does that goes on with the saved epoch
    assert list(resumed) == [], "every sample of this epoch has been used"
    resumed.set_epoch(1)
    assert len(torch.cat(list(resumed))) == 5


def test_a_finished_epoch_leaves_nothing_to_other_ranks():
    """Dropped is dropped: what two ranks left out, one rank does not train on by itself."""
    dataset = list(range(7))
    for options in ({}, {"drop_last": True}):
        loader = ResumableLoader(
            dataset, DistributedSampler(dataset, 2, 0, padding="drop"), 2, **options
        )
        list(loader)
        alone = ResumableLoader(dataset, DistributedSampler(dataset, 1, 0, padding="drop"), 2)
        alone.load_state_dict(loader.state_dict())
        assert list(alone) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [({"seed": 2}, "seed 1"), ({"shuffle": False}, "shuffle True"), ({"total": 9}, "total 10")],
)
def test_a_position_in_another_order_is_refused(change, says):
    saved = DistributedSampler(10, 1, 0, seed=1).state_dict()
    options = {"total": 10, "seed": 1, "shuffle": True, **change}
    with pytest.raises(ValueError, match=says):
        DistributedSampler(options.pop("total"), 1, 0, **options).load_state_dict(saved)


# --- token batches -----------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=60),
    plan=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), max_size=3),
)
def test_token_batches_through_the_loader_over_several_interruptions(lengths, plan):
    dataset, state, read, extra = list(range(len(lengths))), None, [], 0
    for ranks, steps in [*plan, (2, 1000)]:
        parts = []
        for rank in range(ranks):
            sampler = TokenBatchSampler(lengths, 32, ranks, rank, seed=1)
            parts.append(ResumableLoader(dataset, sampler))
            if state is not None:
                parts[-1].load_state_dict(state)
        assert len({len(part) for part in parts}) == 1
        iterators = [iter(part) for part in parts]
        for _ in range(min(steps, len(parts[0]))):
            read += [next(iterator).tolist() for iterator in iterators]
        # The last round is filled up by batches from the front.
        state = parts[0].state_dict()
        assert all(part.state_dict() == state for part in parts)
    batches = [sorted(b) for b in TokenBatchSampler(lengths, 32, seed=1).batches()]
    times = Counter(map(tuple, map(sorted, read)))
    assert set(times) == set(map(tuple, batches))
    extra = sum(times.values()) - len(batches)
    assert extra <= sum(ranks - 1 for ranks, _ in [*plan, (2, 0)])


@pytest.mark.parametrize(
    "change", [{"max_tokens": 40}, {"pool": 3}, {"lengths": [3, 4, 6]}, {"seed": 1}]
)
def test_token_batches_made_otherwise_are_another_order(change):
    options = {"lengths": [3, 4, 5], "max_tokens": 32}
    saved = TokenBatchSampler(**options).state_dict()
    with pytest.raises(ValueError, match="the saved position has"):
        TokenBatchSampler(**{**options, **change}).load_state_dict(saved)


def test_lengths_may_be_a_tensor_and_must_be_positive():
    lengths = torch.tensor([3, 9, 4])
    assert sorted(i for b in TokenBatchSampler(lengths, 10).batches() for i in b) == [0, 1, 2]
    with pytest.raises(ValueError, match="sequence 1 has 0 tokens"):
        TokenBatchSampler([3, 0], 10)


# --- shards ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return write_shards(({"cls": i} for i in range(37)), tmp_path_factory.mktemp("s"), per_shard=6)


@settings(max_examples=25)
@given(
    plan=st.lists(
        st.tuples(st.integers(1, 4), st.lists(st.integers(0, 12), min_size=4, max_size=4)),
        min_size=1, max_size=3,
    ),
    buffer=st.sampled_from([0, 4, 100]),
)  # fmt: skip
def test_shards_over_several_interruptions(shards, plan, buffer):
    """After the second one, every rank's state holds what it loaded of shards that others have read on since."""
    read, state = [], None
    for ranks, taken in [*plan, (2, [100] * 4)]:
        streams = [ShardedStream(shards, ranks, r, seed=3, buffer=buffer) for r in range(ranks)]
        for stream, count in zip(streams, taken, strict=False):
            if state is not None:
                stream.load_state_dict(state)
            read += [s["cls"] for _, s in zip(range(count), stream, strict=False)]
        state = ShardedStream.merge(s.state_dict() for s in streams)
    assert Counter(read) == Counter(range(37))


def test_a_buffer_shuffles_within_a_shard_and_epochs_differ(shards):
    def order(epoch, buffer):
        stream = ShardedStream(shards[:1], buffer=buffer, shuffle=True)
        stream.set_epoch(epoch)
        return [s["cls"] for s in stream]

    assert order(0, 0) == order(1, 0) == list(range(6))
    assert sorted(order(0, 100)) == list(range(6))
    assert order(0, 100) == order(0, 100) != order(0, 0)
    assert len({tuple(order(e, 100)) for e in range(5)}) > 3


def test_a_stream_that_is_over_begins_again(shards):
    stream = ShardedStream(shards)
    assert [s["cls"] for s in stream] == [s["cls"] for s in stream]
    at_the_end = stream.state_dict()
    resumed = ShardedStream(shards)
    resumed.load_state_dict(at_the_end)
    assert list(resumed) == []


def test_shards_of_unlike_sizes_are_dealt_out_by_size(tmp_path):
    """Round robin of 9 sizes leaves one rank with far more; the largest first, to whoever has least, does not."""
    paths = []
    for shard, count in enumerate([40, 1, 1, 30, 1, 1, 20, 10, 1]):
        made = write_shards(({"cls": i} for i in range(count)), tmp_path, 1000, name=f"part{shard}")
        paths += made
    for epoch in range(3):
        loads = []
        for rank in range(3):
            stream = ShardedStream(paths, 3, rank)
            stream.set_epoch(epoch)
            loads.append(sum(os.path.getsize(p) for p in stream.mine()))
        # The largest shard alone is 40 of 105: no way of dealing gets below that.
        assert max(loads) <= 1.15 * max(os.path.getsize(p) for p in paths)


@pytest.mark.filterwarnings(
    "error::ResourceWarning", "error::pytest.PytestUnraisableExceptionWarning"
)
def test_files_are_closed_also_when_reading_stops_in_the_middle(shards):
    stream = iter(ShardedStream(shards))
    next(stream)
    stream.close()
    list(ShardedStream(shards))
    open_files = os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []
    for fd in open_files:
        try:
            assert not os.readlink(f"/proc/self/fd/{fd}").endswith(".tar")
        except FileNotFoundError:
            continue


def test_a_broken_shard_is_named(tmp_path):
    (path,) = write_shards(({"txt": "x" * 2000} for _ in range(5)), tmp_path, per_shard=5)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2 + 100])
    with pytest.raises(ValueError, match=r"shard-00000\.tar .*broken"):
        list(ShardedStream([path]))


def test_a_writer_that_fails_leaves_no_shard_and_no_open_file(tmp_path):
    def samples():
        yield {"cls": 1}
        raise OSError("camera unplugged")

    with pytest.raises(OSError, match="unplugged"):
        write_shards(samples(), tmp_path, per_shard=5)
    assert not list(tmp_path.iterdir())


# --- workers -----------------------------------------------------------------------------------------------------


class Failing(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 5:
            raise RuntimeError("image 5 has no label")
        return index


def test_an_error_of_the_dataset_is_not_taken_for_a_dead_worker():
    sampler = DistributedSampler(8, 1, 0, shuffle=False)
    with pytest.raises(RuntimeError, match="image 5 has no label") as caught:
        list(ResumableLoader(Failing(), sampler, 2, num_workers=1))
    assert "died" not in str(caught.value)


class DiesOnce(Dataset):
    def __init__(self, mark):
        self.mark = mark

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == 7 and not os.path.exists(self.mark):
            Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return index


def test_after_a_dead_worker_the_position_is_good_for_going_on(tmp_path):
    def read(mark):
        def sampler():
            return DistributedSampler(12, 1, 0)

        loader = ResumableLoader(DiesOnce(mark), sampler(), 2, num_workers=1)
        seen = []
        try:
            for batch in loader:
                seen += batch.tolist()
        except RuntimeError as error:
            if "died" not in str(error):
                raise
        before = len(seen)
        again = ResumableLoader(DiesOnce(mark), sampler(), 2, num_workers=1)
        again.load_state_dict(loader.state_dict())
        for batch in again:
            seen += batch.tolist()
        return before, seen

    before, seen = launch(read, 1, str(tmp_path / "mark"))[0]
    assert before < 12
    assert sorted(seen) == list(range(12))


def test_what_torch_says_a_moment_after_a_lost_connection_is_what_is_raised():
    """It says so from a signal handler, wherever the process is by then."""

    def say(number, frame):
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")

    class Lost:
        def __next__(self):
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            raise ConnectionResetError

    before = signal.signal(signal.SIGALRM, say)
    try:
        with pytest.raises(RuntimeError, match="DataLoader worker"):
            loading._next(Lost())
    finally:
        signal.signal(signal.SIGALRM, before)


class Noise(Dataset):
    """What an augmentation draws, from each of the three random number generators."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.rand(1, dtype=torch.double).item(), random.random()


def test_workers_of_different_ranks_and_epochs_draw_different_numbers():
    """Although every rank has seeded itself alike, as for equal initial weights."""
    drawn = []
    for rank in range(2):
        loader = ResumableLoader(Noise(), DistributedSampler(8, 2, rank), 2, num_workers=1)
        for epoch in range(2):
            torch.manual_seed(0)
            loader.set_epoch(epoch)
            drawn += [x for batch in loader for pair in batch for x in pair.tolist()]
    assert len(set(drawn)) == len(drawn) == 32
    drawn = []
    for rank in range(2):  # torch's own, for comparison: what this loader is there to prevent
        torch.manual_seed(0)
        loader = DataLoader(Noise(), 2, sampler=DistributedSampler(8, 2, rank), num_workers=1)
        drawn.append([x for batch in loader for x in batch[0].tolist()])
    assert drawn[0] == drawn[1]


def test_reading_leaves_the_global_random_state_alone():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    list(ResumableLoader(list(range(8)), DistributedSampler(8, 2, 0), 2))
    assert torch.equal(torch.rand(1), expected)


def test_persistent_workers_live_through_epochs():
    class Who(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return os.getpid()

    sampler = DistributedSampler(4, 1, 0)
    loader = ResumableLoader(Who(), sampler, 2, num_workers=1, persistent_workers=True)
    first = {int(p) for batch in loader for p in batch}
    loader.set_epoch(1)
    assert {int(p) for batch in loader for p in batch} == first


# --- images ------------------------------------------------------------------------------------------------------


def test_png_files_in_imagenets_layout_through_the_same_loader(tmp_path):
    """Two ranks with workers read real files, are interrupted, and three go on: every file once."""
    digits = data.digits("test")
    data.write_images(tmp_path, digits.images[:25], digits.labels[:25])
    images = data.image_folder(tmp_path, size=8)
    assert len(images) == 25

    def read(images, state, steps):
        import torch.distributed as dist

        rank, size = dist.get_rank(), dist.get_world_size()
        sampler = DistributedSampler(images, size, rank, padding="exact")
        loader = ResumableLoader(images, sampler, 3, num_workers=1)
        if state:
            loader.load_state_dict(state)
        # range first: no batch too many
        seen = [
            (x.sum().item(), int(y))
            for _, (xs, ys) in zip(range(steps), loader, strict=False)
            for x, y in zip(xs, ys, strict=True)
        ]
        return seen, loader.state_dict()

    first = launch(read, 2, images, None, 2)
    rest = launch(read, 3, images, first[0][1], 100)
    seen = [pair for s, _ in [*first, *rest] for pair in s]
    assert len(seen) == 25
    expected = sorted((round(x.sum().item(), 3), y) for x, y in images)
    assert sorted((round(s, 3), y) for s, y in seen) == expected


def test_an_empty_folder_and_fewer_images_than_ranks(tmp_path):
    with pytest.raises(ValueError, match="no folders in it"):
        data.image_folder(tmp_path)
    data.write_images(tmp_path, torch.rand(2, 1, 8, 8), torch.tensor([0, 1]))
    images = data.image_folder(tmp_path, size=8)
    with pytest.raises(ValueError, match="2 samples are fewer than 4 replicas"):
        DistributedSampler(images, 4, 0, padding="drop")
    lengths = [len(DistributedSampler(images, 4, r, padding="exact")) for r in range(4)]
    assert lengths == [1, 1, 0, 0]
    assert [
        len(list(ResumableLoader(images, DistributedSampler(images, 4, r), 8))) for r in range(4)
    ] == [1] * 4
