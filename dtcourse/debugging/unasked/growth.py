"""Memory of which more stays alive after each step: what is kept, and the line that made it.

Storages are followed from birth to death as in profiling/memory_tracker.py, also those that only autograd holds (a loss
that is summed up with its graph). Each optimizer step is a mark, at which those are added up that were made before this
optimizer's last one: what a step makes for itself may be more than the step before it made, as where a batch grows, and
models that are made one after the other, each with an optimizer, are no leak. Nor is a little: a list of losses grows
too.
"""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from dtcourse.callers import Line, callers
from dtcourse.debugging.sentences import line_in_words, ranks_in_words
from dtcourse.parameters.placement import local
from dtcourse.torch_private import TorchDispatchMode, tree_leaves

LEAST = 1024  # bytes a step
STEPS = 3  # that must each have left more
MOST = 100


class Growth(NamedTuple):
    """bytes: that the last steps have left alive at least, each of them; line: where most of them were made"""

    bytes: int
    line: str


class LiveBytes(TorchDispatchMode):
    """Follows this rank's storages."""

    name = "memory"

    def __init__(self) -> None:
        super().__init__()
        # bytes, the line, and how many marks there had been when it was made
        self._alive: dict[int, tuple[int, tuple[Line, ...], int]] = {}
        self._watch: dict[int, weakref.ref] = {}
        self._marks = 0
        # of each optimizer the marks there were after its last step, and its totals
        self._of: WeakKeyDictionary[Optimizer, tuple[int, list[int]]] = WeakKeyDictionary()
        self._growth: Growth | None = None
        self._handle: Any = None

    def begin(self) -> None:
        gc.freeze()  # what was there before is not looked through at each mark
        self._handle = register_optimizer_step_post_hook(self._mark)
        self.__enter__()

    def end(self) -> Growth | None:
        self.__exit__(None, None, None)
        self._handle.remove()
        gc.unfreeze()
        self._watch.clear()
        return self._growth

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and not leaf.is_meta:
                try:
                    self._see(local(leaf).untyped_storage())
                except (NotImplementedError, RuntimeError):  # it has none
                    continue
        return result

    def _see(self, storage: torch.UntypedStorage) -> None:
        key = id(storage)
        if key in self._alive:
            return
        self._alive[key] = (storage.nbytes(), callers(1), self._marks)
        self._watch[key] = weakref.ref(storage, lambda _: self._died(key))

    def _died(self, key: int) -> None:
        self._watch.pop(key, None)
        self._alive.pop(key, None)

    def _mark(self, optimizer: Optimizer, *_: Any) -> None:
        if self._marks >= MOST:
            return
        gc.collect()
        last, totals = self._of.get(optimizer, (0, []))
        older = [one for one in self._alive.values() if one[2] < last]
        totals.append(sum(size for size, *_ in older))
        self._marks += 1
        self._of[optimizer] = self._marks, totals
        more = [b - a for a, b in pairwise(totals)][-STEPS:]
        self._growth = None
        if len(more) == STEPS and min(more) >= LEAST:
            lines: Counter[tuple[Line, ...]] = Counter()
            for size, line, made_at in older:
                if made_at > 0:
                    lines[line] += size
            self._growth = Growth(min(more), line_in_words(lines.most_common(1)[0][0]))


def grows(seen: list[Any], results: list[Any]) -> str | None:
    """Which ranks keep more after each step, from which line, and do not return as much in the end."""
    ranks = [
        rank
        for rank, (growth, result) in enumerate(zip_longest(seen, results))
        if growth is not None and _bytes_of(result) < STEPS * growth.bytes
    ]
    if not ranks:
        return None
    growth = seen[ranks[0]]
    return (
        f"On {ranks_in_words(ranks)} each step leaves {growth.bytes:,} bytes or more alive, most of them made at "
        f"{growth.line}."
    )


def _bytes_of(result: Any) -> int:
    """Of a program's result: the tensors that it has kept for it."""
    return sum(x.nbytes for x in tree_leaves(result) if isinstance(x, torch.Tensor))
