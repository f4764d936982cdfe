"""The samples that a program's loaders have read, epoch by epoch: which rank read which, as data_order judges them.

A dataset's own __getitem__ is watched from when a DataLoader is made of it, in this process (workers of a loader are
processes of their own, and what they read is not seen: of such an epoch nothing is said).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.data import DataLoader

from dtcourse.debugging.data_order import DataOrder
from dtcourse.debugging.unasked.watch import unseen
from dtcourse.parameters.checksum import checksum
from dtcourse.parameters.placement import local
from dtcourse.plural import plural
from dtcourse.torch_private import LoaderIterator

Heard = Callable[[Any, Any, Callable[[], Any]], Any]  # the dataset, an index, what prepares it


class Prepared:
    """Has `heard` prepare each sample that a dataset of a DataLoader is asked for; of one in another, the outer.

    begins: hears of each loader that begins an epoch, and of its number among these
    """

    def __init__(
        self, heard: Heard, begins: Callable[[Any, int], None] = lambda loader, number: None
    ) -> None:
        self._heard, self._begins = heard, begins
        self._originals: list[tuple[type, str, Any]] = []
        self._inside = False
        self._number = 0
        # The number of the epoch whose loader asks; None for anybody else.
        self.asking: int | None = None

    def begin(self) -> None:
        """From now on."""
        made, iterates = DataLoader.__init__, DataLoader.__iter__
        goes_on = LoaderIterator.__next__
        numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

        def init(loader: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
            self._watch(type(dataset))
            made(loader, dataset, *args, **kwargs)

        def iterate(loader: Any) -> Any:
            self._begins(loader, self._number)
            iterator = iterates(loader)
            numbers[iterator] = self._number
            self._number += 1
            return iterator

        def go_on(iterator: Any) -> Any:
            outer, self.asking = self.asking, numbers.get(iterator)
            try:
                return goes_on(iterator)
            finally:
                self.asking = outer

        self._replace(DataLoader, "__init__", init)
        self._replace(DataLoader, "__iter__", iterate)
        self._replace(LoaderIterator, "__next__", go_on)

    def end(self) -> None:
        """As it was."""
        for kind, name, original in reversed(self._originals):
            setattr(kind, name, original)
        self._originals.clear()

    def _replace(self, kind: type, name: str, by: Any) -> None:
        original = vars(kind)[name]
        setattr(kind, name, by)
        self._originals.append((kind, name, original))

    def _watch(self, kind: type) -> None:
        known = {(one, name) for one, name, _ in self._originals}
        for name in ("__getitem__", "__getitems__"):
            owner = next((one for one in kind.__mro__ if name in vars(one)), None)
            if owner is None or owner.__module__ == "builtins" or (owner, name) in known:
                continue
            with suppress(TypeError):  # written in C, as a tensor is
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


@dataclass
class Epochs:
    """What one loader of a rank has read: of each of its epochs the indices, in order.

    total: samples that its dataset has;  trains: whether gradients were on in all of them
    """

    total: int
    of: list[list[int]] = field(default_factory=list)
    trains: bool = True


class Reads:
    """Notes which samples this rank's loaders read."""

    name = "data order"

    def __init__(self) -> None:
        self._loaders: list[Any] = []  # kept, so that no identity is used again
        self._epochs: list[Epochs] = []
        self._by_number: dict[int, list[int]] = {}
        self._holds: list[tuple[int, float]] = []
        self._prepared = Prepared(self._prepares, self._begins)

    def begin(self) -> None:
        self._prepared.begin()
        self._handle = register_optimizer_step_post_hook(self._has_stepped)

    def end(self) -> tuple[list[Epochs], list[tuple[int, float]]]:
        """What was read, and what this rank has of the model: of each parameter its size and the sum of its bits."""
        self._handle.remove()
        self._prepared.end()
        return self._epochs, self._holds

    @unseen
    def _has_stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._holds:
            mine = [local(p.detach()) for g in optimizer.param_groups for p in g["params"]]
            self._holds = [(one.numel(), checksum(one).item()) for one in mine]

    def _begins(self, loader: Any, number: int) -> None:
        if not hasattr(loader.dataset, "__len__"):
            return
        place = next((i for i, known in enumerate(self._loaders) if known is loader), None)
        if place is None:
            place = len(self._loaders)
            self._loaders.append(loader)
            self._epochs.append(Epochs(len(loader.dataset)))
        read: list[int] = []
        self._by_number[number] = read
        self._epochs[place].of.append(read)
        self._epochs[place].trains &= torch.is_grad_enabled()

    def _prepares(self, dataset: Any, index: Any, call: Any) -> Any:
        if (number := self._prepared.asking) in self._by_number:
            read = self._by_number[number]
            read.extend([index] if isinstance(index, int) else map(int, index))
        return call()


def read_as_they_should(seen: list[Any], results: list[Any]) -> str | None:
    """What data_order finds fault with, in the first loader that all ranks have.

    Ranks that hold different parameters and read the very same are parts of one model (layers, or slices of them), and
    right. So are shards of FSDP by this rule, which are wrong then: of these nothing is said.
    """
    parts = len({tuple(holds) for _, holds in seen}) > 1
    for by_rank in zip(*(loaders for loaders, _ in seen), strict=False):
        epochs = min(len(mine.of) for mine in by_rank)
        by_epoch = [[mine.of[epoch] for mine in by_rank] for epoch in range(epochs)]
        if len({mine.total for mine in by_rank}) != 1 or not epochs:
            continue
        if not all(map(all, by_epoch)):
            continue
        if parts and all(mine == ranks[0] for ranks in by_epoch for mine in ranks):
            by_epoch = [ranks[:1] for ranks in by_epoch]
        # They have come to their end: nobody waits for a rank that reads more. What nobody reads is no mistake in
        # itself: a program may train on a part of its data, or take a few steps of an epoch.
        total = by_rank[0].total
        padding = len(by_rank) - 1 if all(mine.trains for mine in by_rank) else 0
        faults = DataOrder(total, by_epoch, in_step=False, whole=False, padding=padding).faults
        if faults:
            return f"Of {plural(total, 'sample')}, {'; '.join(faults)}"
    return None
