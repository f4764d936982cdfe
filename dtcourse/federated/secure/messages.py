"""What clients send in the rounds of secure aggregation, how many bytes it has, and what both sides check it by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from dtcourse.federated.secure.keys import DIGEST_BYTES, KEY_BYTES, digest
from dtcourse.federated.secure.shamir import SHARE_BYTES


@dataclass(frozen=True)
class Keys:
    """What a client advertises: 96 bytes."""

    seal: bytes
    mask: bytes
    sign: bytes

    nbytes = 3 * KEY_BYTES


@dataclass(frozen=True)
class Sealed:
    """What a client sends in the second round: for each other client its two shares, sealed; and b's digest."""

    messages: Mapping[int, bytes]
    digest: bytes

    @property
    def nbytes(self) -> int:
        return len(self.digest) + sum(map(len, self.messages.values()))


@dataclass(frozen=True)
class Masked:
    """What a client sends in the third round: y, (n,), and the digest of the list of clients whose masks are in it."""

    y: Tensor
    among: bytes

    @property
    def nbytes(self) -> int:
        return self.y.nbytes + DIGEST_BYTES


@dataclass(frozen=True)
class Signature:
    """What a client sends in the fourth round: of the lists that it was sent, 64 bytes."""

    signature: bytes

    @property
    def nbytes(self) -> int:
        return len(self.signature)


@dataclass(frozen=True)
class Shares:
    """What a client sends in the last round: its shares of others' b, and of others' s."""

    of_seed: Mapping[int, int]
    of_key: Mapping[int, int]

    @property
    def nbytes(self) -> int:
        return SHARE_BYTES * (len(self.of_seed) + len(self.of_key))


def check_threshold(threshold: int) -> None:
    """Raises ValueError where the threshold is below 2."""
    if threshold < 2:
        raise ValueError(
            f"the threshold is 2 or more, since the sum of one client is what it has; got {threshold}"
        )


def digest_of_list(clients: Iterable[int]) -> bytes:
    """Of their numbers, in whatever order."""
    return digest(repr(sorted(clients)).encode())
