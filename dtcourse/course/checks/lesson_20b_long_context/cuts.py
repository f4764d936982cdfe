"""Packed sequences that are cut for ranks, drawn anew: what each rank holds, with one mistake or none.

A rank's part is {"words", "places", "targets", "losses", "loss"}, lists in its own order, and the loss of the batch.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch

Diagnosis = tuple[str, int | None]
Part = dict[str, Any]
KINDS = (
    "healthy",
    "shifted late",
    "across documents",
    "mean of means",
    "places restart",
    "another's places",
)
NONE = -100


def run_of(kind: str, turn: int, draw: Random) -> tuple[tuple[Any, ...], Diagnosis]:
    """(words, documents, parts of the ranks) of a cut, and its diagnosis.

    turn: 0, 1, 2; on 4, 2 and 3 ranks, in contiguous, zig-zag and striped order. (Of two ranks in contiguous order, one
          that counts from 0 would have the other's places.)
    """
    p = (4, 2, 3)[turn]
    length = 2 * p * draw.randint(3, 5)
    words = draw.sample(range(1000), length)  # each word once
    starts = sorted(draw.sample(range(2, length - 1), 3))
    documents = [sum(at >= start for start in starts) for at in range(length)]
    chunks = [list(range(i * length // (2 * p), (i + 1) * length // (2 * p))) for i in range(2 * p)]
    order = {
        0: [chunks[2 * r] + chunks[2 * r + 1] for r in range(p)],
        1: [chunks[r] + chunks[2 * p - 1 - r] for r in range(p)],
        2: [list(range(r, length, p)) for r in range(p)],
    }[turn]
    ends = {at for at in range(length) if documents[at + 1 : at + 2] != [documents[at]]}
    parts: list[Part] = []
    lost = kind != "shifted late"
    for places in order:
        mine = [words[at] for at in places]
        targets = [NONE if at in ends else words[at + 1] for at in places]
        right = list(targets)
        if kind == "across documents":
            targets = [words[at + 1] if at + 1 < length else NONE for at in places]
        if kind == "shifted late":
            targets = [*mine[1:], NONE]
            lost |= any(a != b != NONE for a, b in zip(targets, right, strict=True))
        losses = [_rounded(draw.uniform(1, 6)) if target != NONE else 0.0 for target in targets]
        parts.append({"words": mine, "places": places, "targets": targets, "losses": losses})
    if not lost:
        # Every rank's last token is a document's: all targets are there.
        return run_of(kind, turn, draw)
    means = [sum(one["losses"]) / max(1, _num_targets([one])) for one in parts]
    loss = sum(sum(one["losses"]) for one in parts) / _num_targets(parts)
    if kind == "mean of means":
        loss = sum(means) / p
        if (
            abs(loss - sum(sum(one["losses"]) for one in parts) / _num_targets(parts))
            < 0.003 * loss
        ):
            # Ranks with as many targets each: nothing is wrong with it.
            return run_of(kind, turn, draw)
    which = None
    if kind == "places restart":
        for one in parts:
            one["places"] = list(range(len(one["words"])))
    elif kind == "another's places":
        which = draw.randrange(p)
        parts[which]["places"] = list(order[which - 1])
    for one in parts:
        one["loss"] = _rounded(loss)
    return (words, documents, parts), (kind, which)


def _num_targets(parts: list[Part]) -> int:
    return sum(target != NONE for one in parts for target in one["targets"])


def _rounded(x: float) -> float:
    """As single precision has it."""
    return torch.tensor(x, dtype=torch.float32).item()
