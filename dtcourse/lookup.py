"""What a decoder looks up: tokens of its vocabulary, positions below its longest length. Others are refused by number.

A length is read off a shape. A table says itself that it has no such row. Rotary positions have no table, and any angle
can be turned by, so their values are read: on a CPU; on a GPU, where that would be to wait, they are asserted later.
"""

from __future__ import annotations

import torch
from torch import nn

from dtcourse import streams
from dtcourse.torch_private import assert_later, is_plain, without_modes


def check_length(tokens: int, max_length: int, block: nn.Module | None = None) -> None:
    """Raises ValueError where a sequence is longer than the model's longest.

    tokens: of the part of it that is here
    block:  one of the model's; where its attention cuts the sequence over ranks, each of those has as many tokens
    """
    ranks: int = getattr(getattr(getattr(block, "attention", None), "core", None), "ranks", 1)
    if ranks * tokens > max_length:
        parts = f" ({tokens} on each of {ranks} ranks)" if ranks > 1 else ""
        raise ValueError(
            f"a sequence of {ranks * tokens} tokens{parts}; this model's longest is max_length={max_length}"
        )


def check_positions(positions: torch.Tensor, max_length: int) -> None:
    """Raises ValueError where a position is none of a sequence of max_length tokens."""
    if torch.compiler.is_compiling():
        return
    if not is_plain(type(positions)) or positions.is_meta or not positions.numel():
        return
    # On an emulated device a step takes as long as without this.
    with without_modes():
        lowest, highest = positions.detach().aminmax()
        if not streams.may_look(positions):
            fits = (lowest >= 0) & (highest < max_length)
            assert_later(fits, f"a position is none of 0 to {max_length - 1}")
        elif lowest < 0 or highest >= max_length:
            raise ValueError(_said("positions", max_length, lowest, highest, "max_length"))


def look_up(table: nn.Module, numbers: torch.Tensor, rows: int, what: str, of: str) -> torch.Tensor:
    """table(numbers). Raises ValueError where it has no such row; on a GPU that is CUDA's own assertion, later.

    rows: how many the whole table has, where a rank holds a part of it
    what, of: what the numbers are, and what the model's config calls how many there are
    """
    try:
        return table(numbers)
    except IndexError as error:
        lowest, highest = numbers.aminmax()
        if lowest >= 0 and highest < rows:  # something else
            raise
        raise ValueError(_said(what, rows, lowest, highest, of)) from error


def _said(what: str, count: int, lowest: torch.Tensor, highest: torch.Tensor, of: str) -> str:
    return f"{what} of this model are 0 to {count - 1} ({of}={count}); got {lowest.item()} to {highest.item()}"
