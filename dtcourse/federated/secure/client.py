"""A client of secure aggregation: what it sends in each of the four rounds, and what it refuses.

    advertise()      two public keys: c to seal messages to other clients with, s to agree on masks
    share(keys)      shares of its s and of its seed b for each other client, sealed: the server passes them on unread
    masked(sealed)   y_u = x_u + PRG(b_u) + sum_{v > u} PRG(s_uv) - sum_{v < u} PRG(s_uv)      modulo 2^k
    unmask(lists)    its share of b of each client that has sent y, and of s of each one that has dropped out

s_uv is the key that u and v agree on, so each pair's mask is in the sum once with + and once with -. b is for a y that
comes late: the server has taken u for dropped out and learned s_u, but without b_u it still reads nothing. So no client
ever gives out both shares of one client, and each answers `unmask` once.

Source: Bonawitz et al. (CCS 2017), "Practical secure aggregation for privacy-preserving machine learning", figure 4,
without the parts for a server that lies (protocol.py names them). b's digest is ours: by it a wrong share is known.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dtcourse.federated.secure import shamir
from dtcourse.federated.secure.fixed_point import FixedPoint
from dtcourse.federated.secure.keys import KEY_BYTES, KeyPair, digest, mask, seal, unseal


class Refused(ValueError):
    """A client does not answer, and says why."""


@dataclass(frozen=True)
class Keys:
    """What a client advertises: 64 bytes."""

    seal: bytes
    mask: bytes

    nbytes = 2 * KEY_BYTES


@dataclass(frozen=True)
class Sealed:
    """What a client sends in the second round: for each other client its two shares, sealed; and b's digest."""

    messages: Mapping[int, bytes]
    digest: bytes

    @property
    def nbytes(self) -> int:
        return len(self.digest) + sum(map(len, self.messages.values()))


@dataclass(frozen=True)
class Shares:
    """What a client sends in the last round: its shares of others' b, and of others' s."""

    of_seed: Mapping[int, int]
    of_key: Mapping[int, int]

    @property
    def nbytes(self) -> int:
        return shamir.SHARE_BYTES * (len(self.of_seed) + len(self.of_key))


class SecureClient:
    """One client in one aggregation.

    number:    of the client; all numbers differ
    x:         (n,), encoded
    threshold: t, so many clients at least must stay to the end
    """

    def __init__(self, number: int, x: Tensor, threshold: int) -> None:
        self.number, self.x, self.threshold = number, x, threshold
        self._seal, self._mask = KeyPair.drawn(), KeyPair.drawn()
        self._seed = secrets.token_bytes(KEY_BYTES)
        self._own: tuple[int, int] = (0, 0)
        self._received: dict[int, bytes] = {}
        self._keys: Mapping[int, Keys] = {}
        self._answered = False

    def advertise(self) -> Keys:
        """Round 0."""
        return Keys(self._seal.public, self._mask.public)

    def share(self, keys: Mapping[int, Keys]) -> Sealed:
        """Round 1. keys: of all clients that have advertised theirs."""
        self._need(len(keys), "advertised keys")
        if keys.get(self.number) != self.advertise():
            raise Refused(
                f"client {self.number} does not find its own keys in the list, and sends no shares"
            )
        public = [key for one in keys.values() for key in (one.seal, one.mask)]
        if len(set(public)) < len(public):
            raise Refused(f"client {self.number} was sent a list in which a public key comes twice")
        self._keys = keys
        of_key = shamir.split(self._mask.private, self.threshold, list(keys))
        of_seed = shamir.split(self._seed, self.threshold, list(keys))
        self._own = of_key[self.number], of_seed[self.number]
        messages = {}
        for v in keys:
            if v != self.number:
                plain = b"".join(s.to_bytes(shamir.SHARE_BYTES) for s in (of_key[v], of_seed[v]))
                messages[v] = seal(self._channel(v), plain, _context(self.number, v))
        return Sealed(messages, digest(self._seed))

    def masked(self, sealed: Mapping[int, bytes]) -> Tensor:
        """Round 2. sealed: for this client, from each of the others that have sent shares. Returns y, (n,)."""
        if unknown := sorted(set(sealed) - set(self._keys)):
            raise Refused(
                f"client {self.number} was sent shares of {unknown}, who advertised no keys"
            )
        self._received = {v: m for v, m in sealed.items() if v != self.number}
        self._need(len(self._received) + 1, "sent shares")
        y = self.x + mask(self._seed, len(self.x), self.x.dtype)
        for v in self._received:
            pair = mask(self._pair(v), len(y), y.dtype)
            y = y + pair if v > self.number else y - pair
        return y

    def unmask(self, survivors: list[int], dropped: list[int]) -> Shares:
        """Round 3. survivors: whose y the server has;  dropped: the others of those that have sent shares.

        Raises Refused where a client is on both lists, since both its shares would give its x away; where the lists are
        not of the clients that it knows; where fewer than t survive; and where it has answered before.
        """
        known = {*self._received, self.number}
        if both := sorted(set(survivors) & set(dropped)):
            raise Refused(
                f"client {self.number} was asked for both shares of {both}: together they would uncover what these "
                "have sent. It gives neither"
            )
        if self.number not in survivors:
            raise Refused(
                f"client {self.number} has sent its numbers, and is not on the list of those that have"
            )
        if {*survivors, *dropped} != known:
            raise Refused(
                f"client {self.number} was sent lists of {sorted({*survivors, *dropped})}, and knows of {sorted(known)}"
            )
        self._need(len(survivors), "sent their numbers")
        if self._answered:
            raise Refused(
                f"client {self.number} was asked a second time, and answers once: from two lists both shares of a "
                "client could be had"
            )
        self._answered = True
        of_key = {v: self._shares_of(v)[0] for v in dropped}
        return Shares({v: self._shares_of(v)[1] for v in survivors}, of_key)

    # --- its parts ------------------------------------------------------------------------------------------

    def _need(self, num: int, what: str) -> None:
        if num < self.threshold:
            raise Refused(
                f"client {self.number} stops: {num} clients {what}, and {self.threshold} are the threshold"
            )

    def _channel(self, v: int) -> bytes:
        return self._seal.agree(self._keys[v].seal, b"seal")

    def _pair(self, v: int) -> bytes:
        return self._mask.agree(self._keys[v].mask, b"mask")

    def _shares_of(self, v: int) -> tuple[int, int]:
        """Of v's s and of its b."""
        if v == self.number:
            return self._own
        try:
            plain = unseal(self._channel(v), self._received[v], _context(v, self.number))
        except ValueError as error:
            raise Refused(
                f"client {self.number} cannot open the shares of client {v}: {error}"
            ) from None
        half = shamir.SHARE_BYTES
        return int.from_bytes(plain[:half]), int.from_bytes(plain[half:])


def _context(sender: int, receiver: int) -> bytes:
    return f"{sender} to {receiver}".encode()


def encoded(x: Tensor, encoding: FixedPoint, num_clients: int) -> Tensor:
    """x as the clients add it. Raises ValueError where it does not fit, before anything is sent."""
    if not bool(torch.isfinite(x).all()):
        raise ValueError(
            "a number is NaN or infinite: no whole number stands for it. Nothing was sent"
        )
    return encoding.encode(x, num_clients)
