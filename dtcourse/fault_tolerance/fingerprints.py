"""Short names for long values: two that differ in a bit have different ones. A run is known by its data's."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from dtcourse.tensor_bytes import as_bytes

SAMPLES = 16


def digest(value: Any) -> str:
    """16 hexadecimal digits of tensors, arrays, numbers, strings, and containers of them, by value."""
    return hashlib.blake2b(_words(value), digest_size=8).hexdigest()


def fingerprint(dataset: Any) -> str:
    """Of a dataset: its length, and 16 of its samples, evenly spaced, the first and the last among them.

    For one that augments its samples at random, take it of what they are made from.
    """
    total = len(dataset)
    places = sorted({round(i * (total - 1) / (SAMPLES - 1)) for i in range(SAMPLES)})
    return f"{total} samples, {digest([dataset[i] for i in places if total])}"


def _words(value: Any) -> bytes:
    if isinstance(value, torch.Tensor):
        bits = as_bytes(value).cpu().numpy().tobytes()
        return repr((str(value.dtype), tuple(value.shape), digest(bits))).encode()
    if isinstance(value, np.ndarray):
        return repr((str(value.dtype), value.shape, digest(value.tobytes()))).encode()
    if isinstance(value, bytes):
        return value
    if isinstance(value, Mapping):
        return repr(sorted((digest(k), digest(v)) for k, v in value.items())).encode()
    if isinstance(value, list | tuple):
        return repr([type(value).__name__, *map(digest, value)]).encode()
    return f"{type(value).__name__} {value!r}".encode()
