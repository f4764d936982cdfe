"""Random numbers that ranks draw alike for different data: one dropout mask, one augmentation on all of them.

Each drawing is noted with the line of the program, the state that the generator is in, and what it is for: the input of
the model whose forward draws, or the sample that a dataset prepares. Draws outside of both (a model's start, an order
of samples) may be alike, and are not judged. Ranks that draw alike for one input (tensor parallelism) are right.
"""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from typing import Any, NamedTuple

import torch

from dtcourse.callers import callers
from dtcourse.debugging.seeds import streams_in_words
from dtcourse.debugging.sentences import line_in_words
from dtcourse.debugging.unasked.reads import Prepared
from dtcourse.debugging.unasked.watch import Roots, unseen
from dtcourse.parameters.checksum import checksum
from dtcourse.torch_private import TorchDispatchMode, tree_leaves

_DRAWS = ("bernoulli", "dropout", "rand", "normal", "uniform", "multinomial", "exponential")
MOST = 500


class Draw(NamedTuple):
    """where: the line of the program; state: of the generator, as a sum; subject: what it is for"""

    where: str
    state: float
    subject: Any


class Draws(TorchDispatchMode):
    """Notes this rank's draws."""

    name = "seeds"

    def __init__(self) -> None:
        super().__init__()
        self._draws: list[Draw] = []
        self._input: Any = None
        self._roots = Roots(self._entered)
        self._prepared = Prepared(self._prepares)

    def begin(self) -> None:
        self._roots.begin()
        self._prepared.begin()
        self.__enter__()

    def end(self) -> list[Draw]:
        self.__exit__(None, None, None)
        self._prepared.end()
        self._roots.end()
        return self._draws

    @unseen
    def _entered(self, module: Any, args: Any) -> None:
        tensors = [t for t in tree_leaves(args) if isinstance(t, torch.Tensor)]
        self._input = tuple(checksum(t).item() for t in tensors)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._roots.inside and len(self._draws) < MOST:
            name = func.name().removeprefix("aten::")
            if name.startswith(_DRAWS) or name.startswith("native_dropout"):
                generator = kwargs.get("generator") or torch.default_generator
                state = checksum(generator.get_state()).item()
                self._draws.append(Draw(line_in_words(callers()), state, self._input))
        return func(*args, **kwargs)

    def _prepares(self, dataset: Any, index: Any, call: Any) -> Any:
        """A sample is prepared: has anything been drawn for it?"""
        before = _states()
        result = call()
        if len(self._draws) < MOST and _states() != before:
            where = f"{type(dataset).__name__}.__getitem__, sample {index}"
            changed = next(b for b, a in zip(before, _states(), strict=True) if a != b)
            self._draws.append(Draw(where.partition(",")[0], changed, index))
        return result


def _states() -> list[float]:
    states: list[float] = [checksum(torch.get_rng_state()).item(), hash(random.getstate())]
    if "numpy" in sys.modules:
        state: Any = sys.modules["numpy"].random.get_state()
        states.append(hash((state[1].tobytes(), state[2])))
    return states


def alike(seen: list[Any], results: list[Any]) -> str | None:
    """The first line at which ranks draw alike for different data."""
    by_line: dict[str, list[list[Draw]]] = defaultdict(lambda: [[] for _ in seen])
    for rank, draws in enumerate(seen):
        for draw in draws:
            by_line[draw.where][rank].append(draw)
    for where, of_ranks in by_line.items():
        for number, at_once in enumerate(zip(*of_ranks, strict=False)):
            together: dict[float, list[int]] = defaultdict(list)
            for rank, draw in enumerate(at_once):
                together[draw.state].append(rank)
            shared = [
                ranks
                for ranks in together.values()
                if len({str(at_once[rank].subject) for rank in ranks}) > 1
            ]
            if shared:
                said = streams_in_words(shared)
                return (
                    f"{said[0].upper()}{said[1:]} for different data in {where}, "
                    f"in its draw {number} for the first time."
                )
    return None
