"""A checkpoint's pieces must make up each tensor: what no piece covers would be read as whatever was in memory.

torch.distributed.checkpoint reads what there is, and says nothing of the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

Box = tuple[Sequence[int], Sequence[int]]  # offsets, sizes


def check_covered(metadata: Metadata, keys: Iterable[str]) -> None:
    """Raises ValueError, with the numbers, unless the pieces of each tensor cover it, and each element once."""
    for key in keys:
        stored = metadata.state_dict_metadata.get(key)
        if isinstance(stored, TensorStorageMetadata):
            boxes = [(tuple(c.offsets), tuple(c.sizes)) for c in stored.chunks]
            _check(key, tuple(stored.size), [box for box in boxes if prod(box[1])])


def _check(key: str, shape: tuple[int, ...], boxes: list[Box]) -> None:
    for offsets, sizes in boxes:
        if any(o < 0 or o + s > n for o, s, n in zip(offsets, sizes, shape, strict=True)):
            raise ValueError(
                f"{key} is {list(shape)}, and a piece of it in the checkpoint, {_words((offsets, sizes))}, is not "
                "within. Nothing was loaded."
            )
    boxes = sorted(boxes)
    for i, one in enumerate(boxes):
        for other in boxes[i + 1 :]:
            if shape and other[0][0] >= one[0][0] + one[1][0]:
                break  # it and all after it begin below
            if _overlap(one, other):
                raise ValueError(
                    f"two pieces of {key} in the checkpoint overlap: {_words(one)} and {_words(other)}. Nothing was "
                    "loaded."
                )
    there, needed = sum(prod(sizes) for _, sizes in boxes), prod(shape)
    if there != needed:
        raise ValueError(
            f"the checkpoint's {len(boxes)} pieces of {key} {list(shape)} hold {there} of its {needed} elements: a "
            "rank's part was not saved. Nothing was loaded."
        )


def _overlap(one: Box, other: Box) -> bool:
    return all(
        a < b + m and b < a + n
        for a, n, b, m in zip(one[0], one[1], other[0], other[1], strict=True)
    )


def _words(box: Box) -> str:
    return f"[{', '.join(f'{o}:{o + s}' for o, s in zip(*box, strict=True))}]"
