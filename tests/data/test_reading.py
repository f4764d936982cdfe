"""Nothing lost, nothing twice: samplers, loaders, token batches and shards, over any interruption and any ranks."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset
from torch.utils.data import DistributedSampler as TorchSampler

from dtcourse import launch
from dtcourse.data.cache import Cached
from dtcourse.data.image_folders import image_folder, write_images
from dtcourse.data.loader import ResumableLoader
from dtcourse.data.prefetch import Prefetcher
from dtcourse.data.sampler import DistributedSampler
from dtcourse.data.shards import ShardedStream, write_shards
from dtcourse.data.storage import EmulatedStorage
from dtcourse.data.token_batches import TokenBatchSampler
from dtcourse.emulation import EmulatedNetwork
from dtcourse.launch import RankFailure

sizes = st.integers(1, 40)
replicas = st.integers(1, 6)


def samplers(total, ranks, **options):
    return [DistributedSampler(total, ranks, r, **options) for r in range(ranks)]


@given(
    total=sizes,
    ranks=replicas,
    padding=st.sampled_from(["repeat", "drop", "exact"]),
    epoch=st.integers(0, 3),
)
def test_every_sample_once_but_for_the_padding(total, ranks, padding, epoch):
    if padding == "drop" and total < ranks:
        return
    parts = samplers(total, ranks, padding=padding)
    for p in parts:
        p.set_epoch(epoch)
    read = Counter(i for p in parts for i in p)
    lengths = {len(list(p)) for p in parts}
    assert all(len(list(p)) == len(p) for p in parts)
    if padding == "exact":
        assert read == Counter(range(total))
        assert max(lengths) - min(lengths) <= 1
    elif padding == "repeat":
        assert set(read) == set(range(total)) and len(lengths) == 1
        assert sum(read.values()) - total < ranks
    else:
        assert max(read.values(), default=1) == 1 and len(lengths) == 1
        assert total - sum(read.values()) < ranks


@given(
    total=sizes, before=replicas, after=replicas, batch=st.integers(1, 5), batches=st.integers(0, 6),
)  # fmt: skip
def test_resumed_on_another_number_of_ranks_nothing_is_lost_and_nothing_read_twice(
    total, before, after, batch, batches
):
    """`before` ranks train for some batches, the checkpoint is taken, `after` ranks finish the epoch."""
    parts = samplers(total, before, padding="exact", seed=7)
    steps = min(batches, min(len(p) for p in parts) // batch)
    read = []
    loaders = [ResumableLoader(list(range(total)), p, batch) for p in parts]
    for loader in loaders:
        taken = iter(loader)
        for _ in range(steps):
            read += next(taken).tolist()
    states = [loader.state_dict() for loader in loaders]
    assert all(s == states[0] for s in states), "one position for all"

    for sampler in samplers(total, after, padding="exact", seed=7):
        sampler.load_state_dict(states[0])
        for taken in ResumableLoader(list(range(total)), sampler, batch):
            read += taken.tolist()
    assert Counter(read) == Counter(range(total))


@given(total=sizes, ranks=replicas, epoch=st.integers(0, 3), seed=st.integers(0, 3))
def test_the_indices_are_those_of_pytorchs_sampler(total, ranks, epoch, seed):
    for padding in ("repeat", "drop"):
        if padding == "drop" and total < ranks:
            continue
        for r, mine in enumerate(samplers(total, ranks, padding=padding, seed=seed)):
            theirs = TorchSampler(range(total), ranks, r, seed=seed, drop_last=padding == "drop")
            mine.set_epoch(epoch)
            theirs.set_epoch(epoch)
            assert list(mine) == list(theirs)


def test_epochs_differ_and_repeat():
    a, b = DistributedSampler(50, 2, 0), DistributedSampler(50, 2, 0)
    first = list(a)
    a.set_epoch(1)
    assert list(a) != first
    a.set_epoch(0)
    assert list(a) == first == list(b)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_position_counts_what_was_handed_out_not_what_workers_read_ahead(workers):
    loader = ResumableLoader(list(range(20)), DistributedSampler(20, 1, 0), 2, num_workers=workers)
    batches = iter(loader)
    read = next(batches).tolist() + next(batches).tolist()
    state = loader.state_dict()
    again = ResumableLoader(list(range(20)), DistributedSampler(20, 1, 0), 2, num_workers=workers)
    again.load_state_dict(state)
    for batch in again:
        read += batch.tolist()
    assert Counter(read) == Counter(range(20))


class Deadly(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return index


def test_a_worker_that_dies_is_one_clear_error():
    """In a rank: torch raises from a signal handler, wherever this process happens to be at that moment."""

    def read():
        sampler = DistributedSampler(8, 1, 0, shuffle=False)
        list(ResumableLoader(Deadly(), sampler, 2, num_workers=1))

    with pytest.raises(RankFailure, match=r"worker process of the data loader died.*num_workers=0"):
        launch(read, 1)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: DistributedSampler(0, 2, 0), "the dataset is empty"),
        (
            lambda: DistributedSampler(3, 4, 0, padding="drop"),
            "3 samples are fewer than 4 replicas",
        ),
        (lambda: DistributedSampler(3, 2, 2), "got rank 2 of 2"),
        (lambda: DistributedSampler(3, 2, 0, padding="none"), "padding is one of"),
        (
            lambda: TokenBatchSampler([3, 9, 4], 8),
            "sequence 1 has 9 tokens, more than a batch may hold",
        ),
        (lambda: TokenBatchSampler([], 8), "no sequences"),
        (lambda: ShardedStream([]), "no shards"),
        (lambda: ShardedStream(["nowhere.tar"]), "nowhere.tar"),
        (
            lambda: DistributedSampler(5, 1, 0).load_state_dict(
                DistributedSampler(6, 1, 0).state_dict()
            ),
            "total 6",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make()


# --- token batches --------------------------------------------------------------------------------------------------


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=80),
    ranks=st.integers(1, 4), after=st.integers(1, 4), steps=st.integers(0, 3),
)  # fmt: skip
def test_token_batches_fit_and_none_is_lost(lengths, ranks, after, steps):
    parts = [TokenBatchSampler(lengths, 32, ranks, r) for r in range(ranks)]
    assert len({len(p) for p in parts}) == 1, "no rank waits for one with more"
    for batch in parts[0].batches():
        assert max(lengths[i] for i in batch) * len(batch) <= 32
    assert Counter(i for b in parts[0].batches() for i in b) == Counter(range(len(lengths)))

    steps = min(steps, len(parts[0].batches()) // ranks)
    read = [i for p in parts for b in list(p)[:steps] for i in b]
    for p in parts:
        p.advance(steps)
    rest = [TokenBatchSampler(lengths, 32, after, r) for r in range(after)]
    rounds = 0
    for p in rest:
        p.load_state_dict(parts[0].state_dict())
        rounds = len(p)
        read += [i for b in p for i in b]
    assert set(read) == set(range(len(lengths)))
    # Twice only what fills the last round of the resumed ranks.
    assert 0 <= steps * ranks + rounds * after - len(parts[0].batches()) < after


def test_sorting_by_length_saves_padding():
    generator = torch.Generator().manual_seed(0)
    lengths = (torch.rand(500, generator=generator) ** 3 * 100 + 1).int().tolist()

    def padding(batches):
        return sum(max(lengths[i] for i in b) * len(b) for b in batches) / sum(lengths)

    by_tokens = padding(TokenBatchSampler(lengths, 400).batches())
    plain = padding([list(range(i, min(i + 16, 500))) for i in range(0, 500, 16)])
    assert by_tokens < 1.1 < 2 < plain


# --- shards ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    paths = write_shards(({"cls": i} for i in range(23)), folder, per_shard=5)
    assert [p.name for p in paths] == [f"shard-{i:05d}.tar" for i in range(5)]
    assert not list(folder.glob("*.partial"))
    return paths


@settings(max_examples=15)
@given(
    before=st.integers(1, 4),
    after=st.integers(1, 4),
    taken=st.lists(st.integers(0, 12), min_size=4, max_size=4),
)
def test_shards_resumed_on_another_number_of_ranks(shards, before, after, taken):
    """Each rank stops at another point, in the middle of a shard or between two."""
    streams = [ShardedStream(shards, before, r, seed=3) for r in range(before)]
    read = []
    for stream, count in zip(streams, taken, strict=False):
        for _, sample in zip(range(count), stream, strict=False):
            read.append(sample["cls"])
    state = ShardedStream.merge(s.state_dict() for s in streams)
    for r in range(after):
        stream = ShardedStream(shards, after, r, seed=3)
        stream.load_state_dict(state)
        read += [sample["cls"] for sample in stream]
    assert Counter(read) == Counter(range(23))


def test_shards_through_worker_processes(shards):
    stream = ShardedStream(shards, 2, 0)
    read = []
    for sample in DataLoader(stream, batch_size=None, num_workers=2):
        stream.used(sample)
        read.append(sample["cls"])
    rest = ShardedStream(shards, 1, 0)
    rest.load_state_dict(stream.state_dict())
    assert Counter(read + [s["cls"] for s in rest]) == Counter(range(23))


def test_positions_of_different_epochs_do_not_merge(shards):
    a, b = ShardedStream(shards, 2, 0), ShardedStream(shards, 2, 1)
    b.set_epoch(1)
    with pytest.raises(ValueError, match="different epochs"):
        ShardedStream.merge([a.state_dict(), b.state_dict()])


# --- prefetching and caching ----------------------------------------------------------------------------------------


def test_prefetching_reads_ahead_and_keeps_the_order():
    started = []
    ready = threading.Event()

    def items():
        for i in range(5):
            started.append(i)
            if len(started) == 3:
                ready.set()
            yield i

    stream = iter(Prefetcher(items(), depth=2, transform=lambda i: i * 10))
    assert next(stream) == 0
    assert ready.wait(60), "the third is being made while the first is used"
    assert list(stream) == [10, 20, 30, 40]


def test_an_error_in_the_thread_arrives_and_leaving_early_ends_it():
    def items():
        yield 1
        raise OSError("disk")

    stream = iter(Prefetcher(items()))
    assert next(stream) == 1
    with pytest.raises(OSError, match="disk"):
        next(stream)
    before = threading.active_count()
    for _ in Prefetcher(iter(range(1000)), depth=3):
        break
    assert threading.active_count() == before


def test_cached_samples_are_made_once(tmp_path):
    data = [torch.tensor(i) for i in range(4)]
    in_memory, on_disk, other = (
        Cached(data),
        Cached(data, tmp_path, "v1"),
        Cached(data, tmp_path, "v1"),
    )
    for cache in (in_memory, on_disk, other):
        for _ in range(2):
            assert [cache[i].item() for i in range(4)] == [0, 1, 2, 3]
    assert (in_memory.made, on_disk.made, other.made) == (4, 4, 0)
    assert (in_memory.hits, on_disk.hits, other.hits) == (4, 4, 8)
    assert Cached(data, tmp_path, "v2")[0] is not None
    assert len(list(tmp_path.iterdir())) == 5, "another key, another file, and no half-written ones"


def test_a_cache_on_disk_needs_a_key_and_leaves_nothing_half_written(tmp_path):
    with pytest.raises(ValueError, match="key says which dataset"):
        Cached([1, 2], tmp_path)
    with pytest.raises(ValueError, match="capacity"):
        Cached([1, 2], tmp_path, "v1", capacity=1)
    with pytest.raises(Exception, match=r"local object|pickle"):
        Cached([lambda: 0], tmp_path, "v1")[0]
    assert not list(tmp_path.iterdir())


def test_a_full_cache_keeps_what_it_has_and_hits_its_share():
    n, capacity = 400, 100
    cache = Cached(list(range(n)), capacity=capacity)
    sampler = DistributedSampler(n, 1, 0)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        cache.hits = 0
        assert [cache[i] for i in sampler] == list(sampler)
        assert cache.hits == (capacity if epoch else 0), "a share of 1/4, exactly"


def test_several_threads_read_at_the_same_time_and_the_order_stays():
    """Each read waits until as many as there are threads are under way: with fewer at once it would never end."""
    together = threading.Barrier(4, timeout=60)

    def read(i):
        together.wait()
        return i

    assert list(Prefetcher(range(16), depth=8, transform=read, threads=4)) == list(range(16))


def test_a_read_that_fails_among_others_arrives_in_its_place():
    def read(i):
        if i == 3:
            raise OSError("disk")
        return i

    stream = iter(Prefetcher(range(8), depth=4, transform=read, threads=4))
    assert [next(stream) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="disk"):
        next(stream)
    with pytest.raises(ValueError, match="threads is at least 1"):
        Prefetcher([], threads=0)


# --- storage --------------------------------------------------------------------------------------------------------


def test_storage_counts_and_gives_the_files_own_bytes(tmp_path):
    for i in range(3):
        (tmp_path / f"{i}").write_bytes(bytes([i]) * 1000)
    storage = EmulatedStorage()
    for i in range(3):
        with storage.open(tmp_path / f"{i}") as file:
            assert file.read(10) + file.read() == bytes([i]) * 1000
    assert (storage.opens, storage.bytes) == (3, 3000)
    copy = pickle.loads(pickle.dumps(storage))
    assert (copy.latency, copy.opens) == (0.0, 0)
    storage.reset()
    assert (storage.opens, storage.bytes) == (0, 0)
    with pytest.raises(ValueError, match="latency is 0 s or more"):
        EmulatedStorage(latency=-1)


def test_images_and_shards_are_read_through_it(tmp_path):
    write_images(tmp_path / "png", torch.rand(6, 1, 8, 8), torch.arange(6))
    storage = EmulatedStorage()
    images = image_folder(tmp_path / "png", size=8, opener=storage.open)
    assert len([x for x, _ in images]) == 6
    files = [path.read_bytes() for path, _ in images.samples]
    assert (storage.opens, storage.bytes) == (6, sum(map(len, files)))
    (shard,) = write_shards(({"png": f} for f in files), tmp_path, per_shard=6)
    storage.reset()
    assert len(list(ShardedStream([shard], opener=storage.open))) == 6
    assert (storage.opens, storage.bytes) == (1, shard.stat().st_size)


@pytest.mark.timing
def test_readers_at_the_same_time_hide_latency_and_share_bandwidth(tmp_path):
    (tmp_path / "file").write_bytes(bytes(20_000))

    def seconds(storage, threads):
        def read(_):
            with storage.open(tmp_path / "file") as file:
                return file.read()

        start = time.monotonic()
        list(Prefetcher(range(8), 8, read, threads))
        return time.monotonic() - start

    late = EmulatedStorage(latency=0.03)
    ratios = []
    for _ in range(4):  # in pairs; one that the machine disturbed may be repeated
        alone, together = seconds(late, 1), seconds(late, 8)
        assert alone >= 8 * 0.03 and together >= 0.03
        ratios.append(together / alone)
        if ratios[-1] < 0.7:
            break
    else:
        raise AssertionError(f"eight readers take {ratios} of the time of one")
    narrow = EmulatedStorage(bandwidth=1e6)  # 20 ms a file, however many read
    for threads in (1, 8):
        assert seconds(narrow, threads) >= 8 * 0.02


def _read_on_a_virtual_clock(
    path, items, depth, threads, latency, bandwidth, compute, fail_at=None
):
    from dtcourse import emulation

    storage = EmulatedStorage(latency, bandwidth)

    def read(item):
        if item == fail_at:
            raise ValueError(f"item {item} is broken")
        with storage.open(path) as file:
            return item, len(file.read())

    ends = []
    for item, nbytes in Prefetcher(range(items), depth, read, threads):
        assert item == len(ends) and nbytes == 20_000
        emulation.sleep(compute)
        ends.append(emulation.now())
    return ends


@pytest.mark.parametrize(
    ("threads", "bandwidth", "compute", "expected"),
    [
        (1, None, 0.06, [0.04 + 0.06 * i for i in range(1, 9)]),  # hidden, but for the first
        (1, None, 0.0, [0.04 * i for i in range(1, 9)]),
        (4, None, 0.0, [0.04] * 4 + [0.08] * 4),  # four at the same time
        (8, 1e6, 0.0, [0.04 + 0.02 * i for i in range(1, 9)]),  # they share the link
    ],
)
def test_on_the_virtual_clock_readers_are_lanes(tmp_path, threads, bandwidth, compute, expected):
    (tmp_path / "file").write_bytes(bytes(20_000))
    run = launch(
        _read_on_a_virtual_clock, 1, tmp_path / "file", 8, 8, threads, 0.04, bandwidth, compute,
        network=EmulatedNetwork(), clock="virtual", device="cpu",
    )  # fmt: skip
    assert run[0] == pytest.approx(expected, abs=1e-9)


def test_on_the_virtual_clock_a_reader_is_at_most_depth_and_one_ahead(tmp_path):
    (tmp_path / "file").write_bytes(bytes(20_000))
    run = launch(
        _read_on_a_virtual_clock, 1, tmp_path / "file", 6, 1, 8, 0.1, None, 1.0,
        network=EmulatedNetwork(), clock="virtual", device="cpu",
    )  # fmt: skip
    # Items 0, 1 and 2 are there at 0.1; each later one is asked for three items ahead of its use.
    assert run[0] == pytest.approx([1.1, 2.1, 3.1, 4.1, 5.1, 6.1])
    with pytest.raises(RankFailure, match="item 3 is broken"):
        launch(
            _read_on_a_virtual_clock, 1, tmp_path / "file", 6, 1, 8, 0.1, None, 1.0, fail_at=3,
            network=EmulatedNetwork(), clock="virtual", device="cpu",
        )  # fmt: skip
