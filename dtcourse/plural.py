"""A count with its noun: "1 rank", "4 ranks"."""

from __future__ import annotations


def plural(count: int, one: str, many: str | None = None) -> str:
    """`count` and the noun that fits it: 1 and "rank" give "1 rank", 1200 and "byte" give "1,200 bytes".

    many: where it is not one + "s": plural(2, "batch", "batches")
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"
