"""Choices of the largest that have no answer: numbers of 16 bits, of which several are equal where the choice cuts.

A model that chooses among what it has computed (a router) does so as its weights say only if the differences are left
in the numbers' digits: bfloat16 has eight bits of them. Which of equal numbers wins, the operator's order decides.
Looked at are the choices within a model's forward. Numbers with more digits are not judged: a router that begins with
zeros has ties too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from dtcourse.callers import callers
from dtcourse.debugging.sentences import line_in_words
from dtcourse.debugging.unasked.watch import Roots
from dtcourse.torch_private import TorchDispatchMode

CHOICES = ("aten::topk", "aten::max.dim", "aten::argmax")
SHARE = 0.01  # of the rows


class Chosen(NamedTuple):
    """Rows in which the last that was chosen and the first that was not are equal, of how many rows."""

    operation: str
    dtype: str
    tied: int
    rows: int


class Ties(TorchDispatchMode):
    """Looks at this rank's choices."""

    name = "ties"

    def __init__(self) -> None:
        super().__init__()
        self._roots = Roots()
        self._at: dict[str, Chosen] = {}

    def begin(self) -> None:
        self._roots.begin()
        self.__enter__()

    def end(self) -> dict[str, Chosen]:
        self.__exit__(None, None, None)
        self._roots.end()
        return self._at

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._roots.inside and func.name() in CHOICES:
            self._look(func.name(), args, kwargs)
        return func(*args, **kwargs)

    def _look(self, name: str, args: Any, kwargs: Any) -> None:
        named = ("self", "k", "dim", "largest") if name == "aten::topk" else ("self", "dim")
        given = dict(zip(named, args, strict=False)) | kwargs
        numbers, dim, k = given["self"], given.get("dim", -1), given.get("k", 1)
        short = numbers.dtype in (torch.bfloat16, torch.float16)
        if not short or numbers.dim() < 2 or dim is None or not 0 < k < numbers.shape[dim]:
            return
        values = numbers.topk(k + 1, dim, given.get("largest", True)).values
        tied = values.select(dim, k - 1) == values.select(dim, k)
        operation, dtype = name[6:].partition(".")[0], str(numbers.dtype)[6:]
        line = line_in_words(callers())
        _, _, before, rows = self._at.get(line, Chosen(operation, dtype, 0, 0))
        self._at[line] = Chosen(operation, dtype, before + int(tied.sum()), rows + tied.numel())


def without_answer(seen: list[Any], results: list[Any]) -> str | None:
    """The first choice that a row in a hundred, or more, leaves to the order of its numbers."""
    for rank, at in enumerate(seen):
        for line, (operation, dtype, tied, rows) in at.items():
            if tied >= SHARE * rows and tied:
                return (
                    f"On rank {rank}, {operation} chooses among equals in {tied:,} of {rows:,} rows, at {line}: "
                    f"{dtype} has too few digits for this choice."
                )
    return None
