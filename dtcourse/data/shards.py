"""Tar shards: many samples in one file, read from front to back (webdataset's format).

A file system serves a million small files slowly: each costs a look-up, and a seek where disks turn. One tar of a
thousand samples costs one. The price is that a shard is read in order, so shuffling happens among shards and in a
buffer, and the unit that ranks share out is the shard. So make many more shards than readers, of like size: what one
reader has more than the others, all wait for.

Nothing is lost and nothing read twice: `ShardedStream` knows how far each shard has been read, and that position can
be resumed by any number of replicas.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import tarfile
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torch.utils.data import IterableDataset

from dtcourse.data.storage import Opener, local
from dtcourse.plural import plural

T = TypeVar("T")


def write_shards(
    samples: Iterable[Mapping[str, Any]], folder: str | Path, per_shard: int, name: str = "shard"
) -> list[Path]:
    """Writes samples (dicts: "png", "cls", "txt", "json", ... as webdataset encodes them) as tars; returns the paths.

    A shard appears under its name when it is complete, so a half-written one is never read.
    """
    import webdataset

    if per_shard < 1:
        raise ValueError(f"per_shard is at least 1; got {per_shard}")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    numbered = enumerate(samples)
    for first in numbered:
        path = folder / f"{name}-{len(paths):05d}.tar"
        partial = path.with_name(f"{path.name}.partial")
        try:
            with webdataset.TarWriter(str(partial)) as writer:
                for index, sample in itertools.chain(
                    [first], itertools.islice(numbered, per_shard - 1)
                ):
                    writer.write({"__key__": f"{index:08d}", **sample})
            partial.rename(path)
        finally:
            partial.unlink(missing_ok=True)
        paths.append(path)
    return paths


def deal_by_size(sizes: Sequence[float], parts: int) -> list[list[int]]:
    """Shares out things of unlike size: each goes to the part that has least so far, the large ones first.

    Returns the places in `sizes` that each part gets. Sizes are compared in quarters of their mean, rounded, and equal
    ones keep their order, so that a shuffled list stays shuffled. (Sorted exactly, this is Graham's rule of 1969: the
    largest share is at most 4/3 of the best possible one.)
    """
    quarter = sum(sizes) / max(1, len(sizes)) / 4 or 1
    dealt: list[list[int]] = [[] for _ in range(parts)]
    loads = [0.0] * parts
    for place in sorted(range(len(sizes)), key=lambda i: -round(sizes[i] / quarter)):
        least = min(range(parts), key=lambda r: (loads[r], len(dealt[r])))
        dealt[least].append(place)
        loads[least] += sizes[place]
    return dealt


class ShardedStream(IterableDataset[dict[str, Any]]):
    """Samples of one replica from tar shards, decoded by webdataset.

    shards:  paths, the same list on every replica.  decode: webdataset's decoders ("pil", "torchrgb8", ...).
    shuffle: the order of the shards.  buffer: how many samples of a shard are shuffled among each other while reading;
             0 keeps the shard's order.  opener: gives a path's open file (EmulatedStorage.open)
    Shards are dealt out whole by their size, in an order drawn from (seed, epoch); with fewer shards than replicas some
    get none. Replicas get unlike numbers of samples (use Join). DataLoader's workers share a replica's shards likewise.
    """

    def __init__(
        self, shards: Sequence[str | Path], num_replicas: int = 1, rank: int = 0, seed: int = 0,
        shuffle: bool = True, decode: Sequence[Any] = ("pil",), buffer: int = 0, opener: Opener = local,
    ) -> None:  # fmt: skip
        super().__init__()
        self.shards = [str(s) for s in shards]
        if not self.shards:
            raise ValueError("there are no shards to read: check the folder and the pattern")
        missing = [s for s in self.shards if not Path(s).is_file()]
        if missing:
            raise ValueError(
                f"{len(missing)} of {len(self.shards)} shards do not exist, {missing[0]} among them"
            )
        if len(set(self.shards)) < len(self.shards):
            raise ValueError("a shard is named twice: its samples would be read twice")
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank is 0 to num_replicas - 1; got rank {rank} of {num_replicas}")
        if buffer < 0:
            raise ValueError(f"buffer is 0 samples or more; got {buffer}")
        self.num_replicas, self.rank, self.seed, self.shuffle = num_replicas, rank, seed, shuffle
        self.decode, self.buffer, self.opener, self.epoch = tuple(decode), buffer, opener, 0
        self.sizes = {s: Path(s).stat().st_size for s in self.shards}
        self.read: dict[str, int] = {}  # shard -> samples used; -1: all of them
        self._over = False

    def set_epoch(self, epoch: int) -> None:
        """Another epoch has another order of shards, and starts at its beginning."""
        if epoch != self.epoch:
            self.read = {}
        self.epoch = epoch

    def mine(self) -> list[str]:
        """The shards that this replica has still to read, in order."""
        left = [s for s in self.shards if self.read.get(s) != -1]
        draw = random.Random(f"{self.seed} {self.epoch}")
        if self.shuffle:
            draw.shuffle(left)
        dealt = deal_by_size([self.sizes[s] for s in left], self.num_replicas)
        if self.shuffle:
            draw.shuffle(dealt)  # or the largest would always be the same replica's
        return [left[place] for place in sorted(dealt[self.rank])]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """What is left of this epoch; after its end, the same again (call set_epoch for another order)."""
        from torch.utils.data import get_worker_info

        worker = get_worker_info()
        if self._over:
            self.read, self._over = {}, False
        shards = self.mine()
        if worker is not None:
            dealt = deal_by_size([self.sizes[s] for s in shards], worker.num_workers)
            shards = [shards[place] for place in sorted(dealt[worker.id])]
        for shard in shards:
            for number, sample in self._rest_of(shard):
                sample["__shard__"], sample["__number__"] = shard, number
                # Counted as the sample is handed out; with workers, in the main process, by `used`.
                if worker is None:
                    self.read[shard] = number + 1
                yield sample
            if worker is None:
                self.read[shard] = -1
        self._over = worker is None

    def _rest_of(self, shard: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """Decodes the samples of one shard that have not been used. Where a shard stands is one number, also with a
        buffer: what it draws depends on the shard alone, and what is skipped is read but not decoded.
        """
        from webdataset.autodecode import Decoder, ImageHandler

        decoder = Decoder([ImageHandler(d) if isinstance(d, str) else d for d in self.decode])
        draw = random.Random(f"{self.seed} {self.epoch} {Path(shard).name}")
        with contextlib.closing(_samples(shard, self.opener)) as samples:
            for number, sample in enumerate(shuffled(samples, self.buffer, draw)):
                if number >= self.read.get(shard, 0):
                    yield number, decoder(sample) if self.decode else sample

    def used(self, sample: Mapping[str, Any]) -> None:
        """Counts a sample that a worker process has read: each shard is read by one worker, in order."""
        shard, number = sample["__shard__"], sample["__number__"]
        self.read[shard] = max(self.read.get(shard, 0), number + 1)

    def state_dict(self) -> dict[str, Any]:
        """How far this replica has read each shard. Gather all replicas' states into one with `merge`."""
        order = {"epoch": self.epoch, "seed": self.seed, "buffer": self.buffer}
        return {**order, "read": dict(self.read)}

    @staticmethod
    def merge(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """The position of all replicas together: of each shard, how far anyone has come.

        (A replica that was resumed also holds where others' shards stood then.)
        """
        states = list(states)
        if len({(s["epoch"], s["seed"]) for s in states}) != 1:
            raise ValueError("the replicas' positions belong to different epochs or seeds")
        read: dict[str, int] = {}
        for shard, count in (item for s in states for item in s["read"].items()):
            finished = -1 in (count, read.get(shard))
            read[shard] = -1 if finished else max(count, read.get(shard, 0))
        return {**states[0], "read": read}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from there, on any number of replicas."""
        for name in ("seed", "buffer"):
            if state[name] != getattr(self, name):
                raise ValueError(
                    f"the saved position has {name} {state[name]}, this stream has {getattr(self, name)}: "
                    "in another order the same number means other samples"
                )
        unknown = set(state["read"]) - set(self.shards)
        if unknown:
            raise ValueError(
                f"the saved position names shards that this stream has not: {sorted(unknown)[0]}"
            )
        self.epoch, self.read, self._over = state["epoch"], dict(state["read"]), False


def _samples(shard: str, opener: Opener) -> Generator[dict[str, Any], None, None]:
    """Undecoded samples, in the shard's order. The file is closed at its end, and where the reader stops earlier."""
    from webdataset.tariterators import group_by_keys, tar_file_iterator

    count = 0
    with opener(shard) as stream:
        files = ({**file, "__url__": shard} for file in tar_file_iterator(stream))
        try:
            for sample in group_by_keys(files):
                count += 1
                yield sample
        except (tarfile.TarError, EOFError) as error:
            raise ValueError(
                f"the shard {shard} is broken after {plural(count, 'sample')}: {error}"
            ) from error


def shuffled(samples: Iterable[T], size: int, draw: random.Random) -> Iterator[T]:
    """Holds `size` samples, and each new one pushes out a random one of them. Memory: size samples."""
    held: list[T] = []
    for sample in samples:
        if len(held) < size:
            held.append(sample)
        elif held:
            place = draw.randrange(size)
            held[place], out = sample, held[place]
            yield out
        else:
            yield sample
    draw.shuffle(held)
    yield from held
