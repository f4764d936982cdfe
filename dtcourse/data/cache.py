"""Caching: what is dear to read or to make is made once.

In training each epoch reads every sample once, in a new order, so "recently used" says nothing about what comes next. A
cache that throws out the least recently used sample for each new one (as the operating system's does) throws out what
it will need: with room for a share f of the samples it hits f + (1 - f) ln(1 - f) of the time. One that fills up and
then keeps what it has hits f. (Mohan, Phanishayee, Raniwala, Chidambaram 2021, "Analyzing and mitigating data stalls
in DNN training", calls it MinIO.)

Put a cache before whatever is random: a cached augmentation is the same one in every epoch.
"""

from __future__ import annotations

import hashlib
import uuid
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset


class Cached(Dataset[Any]):
    """A dataset whose samples are made once: kept in memory, or in files of `folder` that other ranks read too.

    folder:   samples are tensors, numbers, text, and tuples, lists and dicts of them (torch.save). A file is written
              under another name and renamed when complete, so ranks that make the same sample at the same time do no
              harm.
    key:      what tells this dataset's samples from another's in the same folder (a name, a version, a size)
    capacity: how many samples memory may hold; the first that come stay. None: all of them.
    In memory each process has its own: DataLoader's workers lose theirs at the end of an epoch unless they are
    persistent, and a rank sees other samples in the next epoch. What is handed out is the cached
    object itself: do not write to it.
    """

    def __init__(
        self,
        dataset: Any,
        folder: str | Path | None = None,
        key: str = "",
        capacity: int | None = None,
    ) -> None:
        if folder is not None and not key:
            raise ValueError(
                "key says which dataset the files belong to, such as 'digits 64 pixels, v1': two datasets in one "
                "folder would get each other's samples"
            )
        if capacity is not None and (folder is not None or capacity < 0):
            raise ValueError(f"capacity is samples in memory, without a folder; got {capacity}")
        self.dataset, self.capacity = dataset, capacity
        self.folder = Path(folder) if folder is not None else None
        self.key = hashlib.sha256(key.encode()).hexdigest()[:12]
        self._memory: dict[int, Any] = {}
        self.hits = 0  # samples that were there
        self.made = 0  # samples that this process had to make
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self._in_memory(index) if self.folder is None else self._on_disk(self.folder, index)

    def _in_memory(self, index: int) -> Any:
        if index in self._memory:
            self.hits += 1
            return self._memory[index]
        sample = self._make(index)
        if self.capacity is None or len(self._memory) < self.capacity:
            self._memory[index] = sample
        return sample

    def _on_disk(self, folder: Path, index: int) -> Any:
        path = folder / f"{self.key}-{index:08d}.pt"
        if path.exists():
            self.hits += 1
            return torch.load(path, weights_only=True)
        sample = self._make(index)
        # A name that no process of any machine on this file system gives a second time.
        partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
        try:
            torch.save(sample, partial)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        return sample

    def _make(self, index: int) -> Any:
        self.made += 1
        return self.dataset[index]
