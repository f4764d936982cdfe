"""A seed for each place of a run. Sums would meet: seed 0's rank 1 would draw what seed 1's rank 0 draws."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def seed_of(seed: int, place: Sequence[object]) -> int:
    """64 bits that say nothing of each other's: of a run's seed, and a place in it such as (stage, replica)."""
    digest = hashlib.blake2b(repr((seed, *place)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
