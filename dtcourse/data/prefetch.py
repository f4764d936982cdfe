"""Keeping data ready: prefetching in a thread, and caching what is dear to make."""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.utils.data import Dataset

T = TypeVar("T")
_END = object()


class Prefetcher(Iterable[T]):
    """Makes the next `depth` items in a background thread while the current one is used.

    For work that lets other threads run: reading, decoding in compiled code, copying to a GPU. `transform` runs in
    the thread. An exception in the thread is raised where the item would have come. Leaving the loop early ends it.
    """

    def __init__(
        self,
        items: Iterable[Any],
        depth: int = 2,
        transform: Callable[[Any], T] = lambda item: item,
    ) -> None:
        if depth < 1:
            raise ValueError(f"depth is at least 1; got {depth}")
        self.items, self.depth, self.transform = items, depth, transform

    def __iter__(self) -> Iterator[T]:
        ready: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(self.depth)
        stopped = threading.Event()

        def put(item: Any, error: BaseException | None = None) -> bool:
            while not stopped.is_set():
                try:
                    ready.put((item, error), timeout=0.05)
                    return True
                except queue.Full:
                    continue
            return False

        def work() -> None:
            try:
                for item in self.items:
                    if not put(self.transform(item)):
                        return
                put(_END)
            except BaseException as error:
                put(None, error)

        thread = threading.Thread(target=work, daemon=True, name="dtcourse-prefetch")
        thread.start()
        try:
            while True:
                item, error = ready.get()
                if error is not None:
                    raise error
                if item is _END:
                    return
                yield item
        finally:
            stopped.set()
            thread.join()


class Cached(Dataset[Any]):
    """A dataset whose samples are made once: kept in memory, or in files of `folder` that other ranks read too.

    A file is written under another name and renamed when complete, so ranks that make the same sample at the same
    time do no harm. key: what tells this dataset's samples from another's in the same folder (a version, a size).
    """

    def __init__(self, dataset: Any, folder: str | Path | None = None, key: str = "") -> None:
        self.dataset = dataset
        self.folder = Path(folder) if folder is not None else None
        self.key = hashlib.sha256(key.encode()).hexdigest()[:12]
        self._memory: dict[int, Any] = {}
        self.made = 0  # samples that this process had to make
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        if self.folder is None:
            if index not in self._memory:
                self._memory[index] = self._make(index)
            return self._memory[index]
        path = self.folder / f"{self.key}-{index:08d}.pt"
        if path.exists():
            return torch.load(path, weights_only=True)
        sample = self._make(index)
        partial = path.with_name(f"{path.name}.{threading.get_native_id()}.partial")
        torch.save(sample, partial)
        partial.replace(path)
        return sample

    def _make(self, index: int) -> Any:
        self.made += 1
        return self.dataset[index]
