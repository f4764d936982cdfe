"""How long a sequence is, as its shape says it: to read a value would be to wait for a GPU in each forward."""

from __future__ import annotations

from torch import nn


def check_length(tokens: int, max_length: int, block: nn.Module) -> None:
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
