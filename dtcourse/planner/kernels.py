"""How long one kernel takes on one device: a matrix product from its shape, anything else from its bytes.

A product is cut into tiles, and the tiles are given out to the multiprocessors in waves. In the last wave some of these
have no tile, and all wait for it (wave quantisation; NVIDIA, "Matrix multiplication background"). Each tile starts by
filling its pipeline and ends by storing, which a short inner dim does not pay back (`fill`). No product is faster than
its bytes come from memory (the roofline). The rate in a full wave is the most that was ever measured on the card
(`reached`), times what is left of it in a long run (`sustained`, which is fitted).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dtcourse.planner.hardware import Hardware

# Rows, columns, and the rate beside the largest tile's: smaller ones load more bytes per product from shared memory.
TILES = (
    (256, 128, 1.0),
    (128, 256, 1.0),
    (128, 128, 0.95),
    (128, 64, 0.8),
    (64, 128, 0.8),
    (64, 64, 0.65),
)
SPLITS = (1, 2, 4, 8)  # parts of the inner dim, whose sums are added afterwards (split-K)


@dataclass(frozen=True)
class Kernel:
    """One or several launches of the same kind.

    kind:     "products", "attention" or "memory"
    seconds:  on the device, of all
    launches: of the host
    flops:    operations that it performs
    part:     "forward", "input" (gradient of it) or "weight"
    core:     it belongs to attention's core, which selective recompute runs again
    last:     nothing behind it in its block keeps what it makes
    """

    kind: str
    seconds: float
    launches: float = 1
    flops: float = 0.0
    part: str = "forward"
    core: bool = False
    last: bool = False


@lru_cache(maxsize=100_000)
def product_seconds(
    m: int,
    n: int,
    k: int,
    count: int,
    hardware: Hardware,
    element: int = 2,
    eight: bool = False,
    tf32: bool = False,
) -> float:
    """Of `count` products (m, k) x (k, n) in one launch. element: bytes of a number; eight: 8-bit floats."""
    if hardware.measured and (m, n, k, count) in hardware.measured.products:
        return hardware.measured.products[m, n, k, count]
    rate = hardware.clock * hardware.sustained
    rate *= hardware.rate(8 if eight else 8 * element, tf32)
    rate *= hardware.reached_8bit if eight else hardware.reached
    inputs = 1 if eight else element
    bandwidth = hardware.hbm * hardware.hbm_share
    moved = count * (inputs * (m * k + k * n) + element * m * n) / bandwidth
    best = math.inf
    for rows, columns, speed in TILES:
        tiles = count * math.ceil(m / rows) * math.ceil(n / columns)
        # Of a matrix narrower than the smallest tile only so much is multiplied, in steps of 16.
        high, wide = (
            min(tile, 16 * math.ceil(size / 16)) if tile == 64 else tile
            for tile, size in ((rows, m), (columns, n))
        )
        for split in SPLITS:
            if split > 1 and k // split < 4 * hardware.fill:
                break
            waves = math.ceil(tiles * split / hardware.sms)
            each = 2 * high * wide * (k / split + hardware.fill) * hardware.sms / (rate * speed)
            added = 8 * (split > 1) * split * m * n * count / bandwidth
            best = min(best, waves * each + added)
    return max(best, moved, hardware.least)


def product(
    m: int,
    n: int,
    k: int,
    hardware: Hardware,
    *,
    count: int = 1,
    element: int = 2,
    eight: bool = False,
    tf32: bool = False,
    part: str = "forward",
    core: bool = False,
) -> Kernel:
    """(m, k) x (k, n), `count` times in one launch."""
    seconds = product_seconds(m, n, k, count, hardware, element, eight, tf32)
    return Kernel("products", seconds, 1, 2.0 * m * n * k * count, part, core)


def linear(
    tokens: int,
    out: int,
    into: int,
    hardware: Hardware,
    *,
    element: int,
    eight: bool = False,
    tf32: bool = False,
    count: int = 1,
) -> list[Kernel]:
    """A linear layer: its product, and the two of its backward pass."""
    options: dict[str, Any] = {
        "hardware": hardware,
        "element": element,
        "eight": eight,
        "tf32": tf32,
        "count": count,
    }
    return [
        product(tokens, out, into, part="forward", **options),
        product(tokens, into, out, part="input", **options),
        product(into, out, tokens, part="weight", **options),
    ]


def moving(
    nbytes: float,
    hardware: Hardware,
    *,
    launches: float = 1,
    part: str = "forward",
    core: bool = False,
) -> Kernel:
    """A kernel that only reads and writes: so many bytes in all."""
    seconds = nbytes / (hardware.hbm * hardware.hbm_share)
    return Kernel("memory", max(seconds, hardware.least * launches), launches, 0.0, part, core)


def flash(
    sequences: int,
    queries: int,
    keys: int,
    heads: int,
    width: int,
    hardware: Hardware,
    share: tuple[float, float],
    causal: bool,
    peak: float,
) -> list[Kernel]:
    """A fused attention: forward, and backward with the scores computed once more (five products for two). share: part
    of `peak`, the rate of its dtype.

    Blocks of 128 keys that no query sees are left out; those on the diagonal are computed whole.
    """
    pairs: float = queries * keys
    if causal:
        pairs = pairs / 2 + queries * min(128, keys) / 2
    flops = 4.0 * sequences * heads * width * pairs
    rate = peak * hardware.clock * hardware.sustained
    # A block of 128 queries of a head is a multiprocessor's: with few of them some have none.
    blocks = sequences * heads * math.ceil(queries / 128)
    waves = (
        math.ceil(blocks / hardware.sms) * hardware.sms / blocks
        if blocks < 4 * hardware.sms
        else 1.0
    )
    forward, backward = (
        flops * work * waves / (rate * part) for work, part in zip((1, 2.5), share, strict=True)
    )
    return [
        Kernel("attention", max(forward, hardware.least), 1, flops, "forward", True),
        Kernel("attention", max(backward, 3 * hardware.least), 3, 2.5 * flops, "input", True),
    ]
