"""The samples that a program's loaders have read, epoch by epoch: which rank read which, as data_order judges them.

A dataset's own __getitem__ is watched from when a DataLoader is made of it, in this process (workers of a loader are
processes of their own, and what they read is not seen: of such an epoch nothing is said).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from dtcourse.debugging.data_order import DataOrder
from dtcourse.plural import plural

Heard = Callable[[Any, Any, Callable[[], Any]], Any]  # the dataset, an index, what prepares it


class Prepared:
    """Has `heard` prepare each sample that a dataset of a DataLoader is asked for; of one in another, the outer."""

    def __init__(self, heard: Heard, begins: Callable[[Any], None] = lambda dataset: None) -> None:
        self._heard, self._begins = heard, begins
        self._originals: list[tuple[type, str, Any]] = []
        self._inside = False

    def begin(self) -> None:
        """From now on."""
        made, iterates = DataLoader.__init__, DataLoader.__iter__

        def init(loader: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
            self._watch(type(dataset))
            made(loader, dataset, *args, **kwargs)

        def iterate(loader: Any) -> Any:
            self._begins(loader.dataset)
            return iterates(loader)

        self._replace(DataLoader, "__init__", init)
        self._replace(DataLoader, "__iter__", iterate)

    def end(self) -> None:
        """As it was."""
        for kind, name, original in reversed(self._originals):
            setattr(kind, name, original)
        self._originals.clear()

    def _replace(self, kind: type, name: str, by: Any) -> None:
        self._originals.append((kind, name, vars(kind)[name]))
        setattr(kind, name, by)

    def _watch(self, kind: type) -> None:
        known = {(one, name) for one, name, _ in self._originals}
        for name in ("__getitem__", "__getitems__"):
            owner = next((one for one in kind.__mro__ if name in vars(one)), None)
            if owner is None or owner.__module__ == "builtins" or (owner, name) in known:
                continue
            self._replace(owner, name, self._watched(vars(owner)[name]))

    def _watched(self, original: Any) -> Any:
        def watched(dataset: Any, index: Any) -> Any:
            if self._inside:
                return original(dataset, index)
            self._inside = True
            try:
                return self._heard(dataset, index, lambda: original(dataset, index))
            finally:
                self._inside = False

        return watched


class Reads:
    """Notes which samples this rank's loaders read: of each dataset its length, and of each epoch the indices, and
    whether it may be one of training (gradients are on).
    """

    name = "data order"

    def __init__(self) -> None:
        self._datasets: list[Any] = []  # kept, so that no identity is used again
        self._read: list[list[list[int]]] = []
        self._trains: list[list[bool]] = []
        self._prepared = Prepared(self._prepares, self._begins)

    def begin(self) -> None:
        self._prepared.begin()

    def end(self) -> list[tuple[int, list[list[int]], list[bool]]]:
        self._prepared.end()
        totals = [len(dataset) for dataset in self._datasets]
        return list(zip(totals, self._read, self._trains, strict=True))

    def _number(self, dataset: Any) -> int:
        for number, known in enumerate(self._datasets):
            if known is dataset:
                return number
        self._datasets.append(dataset)
        self._read.append([])
        self._trains.append([])
        return len(self._datasets) - 1

    def _begins(self, dataset: Any) -> None:
        if hasattr(dataset, "__len__"):
            number = self._number(dataset)
            self._read[number].append([])
            self._trains[number].append(torch.is_grad_enabled())

    def _prepares(self, dataset: Any, index: Any, call: Any) -> Any:
        epochs = next(
            (r for d, r in zip(self._datasets, self._read, strict=True) if d is dataset), []
        )
        if epochs:
            epochs[-1].extend([index] if isinstance(index, int) else map(int, index))
        return call()


def read_as_they_should(seen: list[Any], results: list[Any]) -> str | None:
    """What data_order finds fault with, in the first dataset that all ranks read."""
    for number in range(min(map(len, seen))):
        totals = {mine[number][0] for mine in seen}
        epochs = min(len(mine[number][1]) for mine in seen)
        by_epoch = [[mine[number][1][epoch] for mine in seen] for epoch in range(epochs)]
        if len(totals) != 1 or not epochs or not all(all(by_rank) for by_rank in by_epoch):
            continue
        total = totals.pop()
        trains = all(all(mine[number][2]) for mine in seen)
        # They have come to their end: nobody waits for a rank that reads more. What nobody reads is no mistake in
        # itself: a program may train on a part of its data, or take a few steps of an epoch.
        padding = len(seen) - 1 if trains else 0
        faults = DataOrder(total, by_epoch, in_step=False, whole=False, padding=padding).faults
        if faults:
            return f"Of {plural(total, 'sample')}, {'; '.join(faults)}"
    return None
