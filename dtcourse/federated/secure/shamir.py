"""Shamir's shares: a secret as points of a polynomial, of which any t give it back and t - 1 say nothing.

    shares = split(secret, threshold=3, holders=[4, 7, 8, 9])     # {4: ..., 7: ...}
    join({4: shares[4], 8: shares[8], 9: shares[9]}, threshold=3)

The secret is f(0), of a polynomial f of degree t - 1 whose other coefficients are drawn, modulo a prime; client v holds
f(v + 1). t points fix f; through t - 1 and any value at 0 there is exactly one f, so each secret is as
likely as another. Source: Shamir (CACM 1979). A share has 66 bytes.
"""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence

PRIME = 2**521 - 1  # above 2^256, so that a key is a number below it; a prime of Mersenne's
SHARE_BYTES = 66
SECRET_BYTES = 32
TRIES = 2000


def split(secret: bytes, threshold: int, holders: Sequence[int]) -> dict[int, int]:
    """holder -> share. holders: their numbers, 0 or more, no two the same."""
    if not 1 <= threshold <= len(holders):
        raise ValueError(
            f"a threshold of {threshold} is not possible with {len(holders)} holders: it is 1 to {len(holders)}"
        )
    if len(set(holders)) < len(holders) or min(holders) < 0:
        raise ValueError(f"holders are different numbers, 0 or more; got {sorted(holders)}")
    if len(secret) > SECRET_BYTES:
        raise ValueError(f"a secret has at most {SECRET_BYTES} bytes; got {len(secret)}")
    coefficients = [
        int.from_bytes(secret),
        *(secrets.randbelow(PRIME) for _ in range(threshold - 1)),
    ]
    return {holder: _value(coefficients, holder + 1) for holder in holders}


def _value(coefficients: Sequence[int], x: int) -> int:
    """Of the polynomial at x: Horner's way."""
    value = 0
    for c in reversed(coefficients):
        value = (value * x + c) % PRIME
    return value


def at_zero(shares: Mapping[int, int]) -> int:
    """f(0), of the polynomial through these points: Lagrange's formula.

    f(0) = sum_v f(x_v) prod_{w != v} x_w / (x_w - x_v), with division modulo the prime
    """
    total = 0
    for v, share in shares.items():
        above, below = 1, 1
        for w in shares:
            if w != v:
                above = above * (w + 1) % PRIME
                below = below * (w - v) % PRIME
        total += share * above * pow(below, -1, PRIME)
    return total % PRIME


def join(
    shares: Mapping[int, int], threshold: int, fits: Callable[[bytes], bool] = lambda secret: True
) -> tuple[bytes, list[int]]:
    """The secret, and the holders whose share did not fit.

    fits: whether a secret is the right one; where it is not, other holders' shares are tried
    Raises ValueError where there are too few shares, or none of the tries gives a secret that fits.
    """
    if len(shares) < threshold:
        raise ValueError(
            f"{len(shares)} shares came, and {threshold} are needed: with fewer the secret may be any number"
        )
    for holders in _choices(list(shares), threshold):
        chosen = {v: shares[v] for v in holders}
        value = at_zero(chosen)
        if value >> (8 * SECRET_BYTES):
            continue
        secret = value.to_bytes(SECRET_BYTES)
        if fits(secret):
            return secret, [
                v for v in shares if v not in chosen and not _on_line(chosen, v, shares[v])
            ]
    raise ValueError(
        f"no {threshold} of the {len(shares)} shares, from clients {', '.join(map(str, shares))}, give the secret: "
        "some do not fit"
    )


def _choices(holders: list[int], threshold: int) -> Iterator[Sequence[int]]:
    """Holders whose shares are tried: all choices where they are few, and drawn ones where they are many.

    In order, a wrong share of the first holder would be in thousands of them before the first without it.
    """
    if math.comb(len(holders), threshold) <= TRIES:
        yield from itertools.combinations(holders, threshold)
        return
    yield holders[:threshold]
    draw = secrets.SystemRandom()
    for _ in range(TRIES):
        yield draw.sample(holders, threshold)


def _on_line(chosen: Mapping[int, int], holder: int, share: int) -> bool:
    """Whether a share is of the polynomial that the chosen ones fix: in place of any of them it gives the same."""
    others = dict(list(chosen.items())[1:])
    return at_zero({**others, holder: share}) == at_zero(chosen)
