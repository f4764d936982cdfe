"""Tar shards: many samples in one file, read from front to back (webdataset's format).

A file system serves a million small files slowly: each costs a look-up, and a seek where disks turn. One tar of a
thousand samples costs one. The price is that a shard is read in order, so shuffling happens among shards and in a
buffer, and the unit that ranks share out is the shard.

Nothing is lost and nothing read twice: `ShardedStream` knows how far each shard has been read, and that position can
be resumed by any number of replicas.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import IterableDataset


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
    writer, partial, count = None, Path(), 0
    for index, sample in enumerate(samples):
        if writer is None:
            partial = folder / f"{name}-{len(paths):05d}.tar.partial"
            writer, count = webdataset.TarWriter(str(partial)), 0
        writer.write({"__key__": f"{index:08d}", **sample})
        count += 1
        if count == per_shard:
            paths.append(_finish(writer, partial))
            writer = None
    if writer is not None:
        paths.append(_finish(writer, partial))
    return paths


def _finish(writer: Any, partial: Path) -> Path:
    writer.close()
    return partial.rename(partial.with_suffix(""))


class ShardedStream(IterableDataset[dict[str, Any]]):
    """Samples of one replica from tar shards, decoded by webdataset.

    shards:  paths, the same list on every replica.  decode: webdataset's decoders ("pil", "torchrgb8", ...).
    buffer:  samples shuffled among each other while reading; 0 keeps the order of the shard.
    Shards are dealt out whole, in an order drawn from (seed, epoch); with fewer shards than replicas some get none.
    DataLoader's workers share a replica's shards in the same way.
    """

    def __init__(
        self, shards: Sequence[str | Path], num_replicas: int = 1, rank: int = 0, seed: int = 0,
        shuffle: bool = True, decode: Sequence[Any] = ("pil",),
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
        self.num_replicas, self.rank, self.seed, self.shuffle = num_replicas, rank, seed, shuffle
        self.decode, self.epoch = tuple(decode), 0
        self.read: dict[str, int] = {}  # shard -> samples used; -1: all of them

    def set_epoch(self, epoch: int) -> None:
        """Another epoch has another order of shards, and starts at its beginning."""
        if epoch != self.epoch:
            self.read = {}
        self.epoch = epoch

    def mine(self) -> list[str]:
        """The shards that this replica has still to read, in order."""
        left = [s for s in self.shards if self.read.get(s) != -1]
        if self.shuffle:
            random.Random(self.seed * 1_000_003 + self.epoch).shuffle(left)
        return left[self.rank :: self.num_replicas]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        from torch.utils.data import get_worker_info

        worker = get_worker_info()
        shards = self.mine()
        if worker is not None:
            shards = shards[worker.id :: worker.num_workers]
        for shard in shards:
            done = self.read.get(shard, 0)
            for number, sample in enumerate(_samples(shard, self.decode)):
                if number < done:
                    continue
                sample["__shard__"], sample["__number__"] = shard, number
                # Counted as the sample is handed out; with workers, in the main process, by `used`.
                if worker is None:
                    self.read[shard] = number + 1
                yield sample
            if worker is None:
                self.read[shard] = -1

    def used(self, sample: Mapping[str, Any]) -> None:
        """Counts a sample that a worker process has read: each shard is read by one worker, in order."""
        shard, number = sample["__shard__"], sample["__number__"]
        self.read[shard] = max(self.read.get(shard, 0), number + 1)

    def state_dict(self) -> dict[str, Any]:
        """How far this replica has read each shard. Gather all replicas' states into one with `merge`."""
        return {"epoch": self.epoch, "seed": self.seed, "read": dict(self.read)}

    @staticmethod
    def merge(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """The position of all replicas together."""
        states = list(states)
        if len({(s["epoch"], s["seed"]) for s in states}) != 1:
            raise ValueError("the replicas' positions belong to different epochs or seeds")
        return {**states[0], "read": {k: v for s in states for k, v in s["read"].items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from there, on any number of replicas."""
        if state["seed"] != self.seed:
            raise ValueError(
                f"the saved position has seed {state['seed']}, this stream has {self.seed}"
            )
        unknown = set(state["read"]) - set(self.shards)
        if unknown:
            raise ValueError(
                f"the saved position names shards that this stream has not: {sorted(unknown)[0]}"
            )
        self.epoch, self.read = state["epoch"], dict(state["read"])


def _samples(shard: str, decode: tuple[Any, ...]) -> Iterator[dict[str, Any]]:
    import webdataset

    # empty_check and splitters off: which shard is read where is decided above.
    dataset = webdataset.WebDataset(
        shard, shardshuffle=False, nodesplitter=lambda source: source, workersplitter=lambda source: source,
        empty_check=False,
    )  # fmt: skip
    yield from dataset.decode(*decode) if decode else dataset
