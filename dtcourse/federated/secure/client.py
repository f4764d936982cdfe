"""A client of secure aggregation: what it sends in each of the five rounds, and what it refuses.

    advertise()         three public keys: to seal messages to other clients, to agree on masks (s), to sign lists
    share(keys)         shares of its s and of its seed b for each other client, sealed: the server only passes them on
    masked(sealed)      y_u = x_u + PRG(b_u) + sum_{v > u} PRG(s_uv) - sum_{v < u} PRG(s_uv)      modulo 2^k
    consistency(lists)  its signature of who has sent y, and who has dropped out
    unmask(signatures)  its share of b of each client that has sent y, and of s of each one that has dropped out

s_uv is the key that u and v agree on, so each pair's mask is in the sum once with + and once with -. b is for a y that
comes late: the server has taken u for dropped out and learned s_u, but without b_u it still reads nothing.

What a server that lies could ask for, and does not get: both shares of one client; a second y, which with the first
one gives a pair's mask away; a second answer; a sum of fewer than t clients, by a list in which one comes twice, or by
other lists to others; a sum with a threshold of half or less, so that two lists could have t signatures each.

Source: Bonawitz et al. (CCS 2017), "Practical secure aggregation for privacy-preserving machine learning", figure 4,
without the third party that vouches for keys (protocol.py says against what it helps). Two digests are ours: of b, by
which a wrong share is known, and of the list whose masks are in y, so that no mask stays in the sum.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

import torch
from torch import Tensor

from dtcourse.federated.secure import shamir
from dtcourse.federated.secure.keys import (
    KEY_BYTES,
    KeyPair,
    SigningPair,
    digest,
    mask,
    seal,
    signed_by,
    unseal,
)
from dtcourse.federated.secure.messages import (
    Keys,
    Masked,
    Sealed,
    Shares,
    Signature,
    check_threshold,
    digest_of_list,
)


class Refused(ValueError):
    """A client does not answer, and says why."""


class SecureClient:
    """One client in one aggregation.

    number:    of the client; all numbers differ
    x:         (n,), encoded
    threshold: t, so many clients at least must stay to the end: 2 or more, and more than half of all

    Each method raises Refused where the client does not answer, and answers once.
    """

    def __init__(self, number: int, x: Tensor, threshold: int) -> None:
        if x.dim() != 1 or not len(x) or x.dtype not in (torch.int32, torch.int64):
            # a tensor of another shape would get too few mask numbers, and share them
            raise ValueError(
                f"x is (n,) of int32 or int64, so that each number has a mask; client {number} has {tuple(x.shape)} "
                f"of {x.dtype}"
            )
        check_threshold(threshold)
        self.number, self.x, self.threshold = number, x, threshold
        self._seal, self._mask, self._sign = KeyPair.drawn(), KeyPair.drawn(), SigningPair.drawn()
        self._seed = secrets.token_bytes(KEY_BYTES)
        self._own: tuple[int, int] = (0, 0)
        self._received: dict[int, bytes] = {}
        self._keys: Mapping[int, Keys] = {}
        self._lists: tuple[list[int], list[int]] = ([], [])
        self._answered: set[str] = set()

    def advertise(self) -> Keys:
        """Round 0."""
        return Keys(self._seal.public, self._mask.public, self._sign.public)

    def share(self, keys: Mapping[int, Keys]) -> Sealed:
        """Round 1. keys: of all clients that have advertised theirs."""
        self._once("share")
        self._need(len(keys), "advertised keys")
        if keys.get(self.number) != self.advertise():
            raise Refused(
                f"client {self.number} does not find its own keys in the list, and sends no shares"
            )
        public = [key for one in keys.values() for key in (one.seal, one.mask, one.sign)]
        if len(set(public)) < len(public):
            raise Refused(f"client {self.number} was sent a list in which a public key comes twice")
        if 2 * self.threshold <= len(keys):
            raise Refused(
                f"client {self.number} refuses a threshold of {self.threshold} with {len(keys)} clients: a server "
                "could send half of them another list than the others, and have both secrets of one. It is to be "
                f"{len(keys) // 2 + 1} or more"
            )
        self._keys = dict(keys)
        for v in keys:
            self._channel(v), self._pair(v)
        self._answered.add("share")
        of_key = shamir.split(self._mask.private, self.threshold, list(keys))
        of_seed = shamir.split(self._seed, self.threshold, list(keys))
        self._own = of_key[self.number], of_seed[self.number]
        messages = {}
        for v in keys:
            if v != self.number:
                plain = b"".join(s.to_bytes(shamir.SHARE_BYTES) for s in (of_key[v], of_seed[v]))
                messages[v] = seal(self._channel(v), plain, _context(self.number, v))
        return Sealed(messages, digest(self._seed))

    def masked(self, sealed: Mapping[int, bytes]) -> Masked:
        """Round 2. sealed: for this client, from each of the others that have sent shares."""
        self._once("masked", after=("share", "sent no shares"))
        if unknown := sorted(set(sealed) - set(self._keys)):
            raise Refused(
                f"client {self.number} was sent shares of {unknown}, who advertised no keys"
            )
        received = {v: m for v, m in sealed.items() if v != self.number}
        self._need(len(received) + 1, "sent shares")
        self._received = received
        self._answered.add("masked")
        y = self.x + mask(self._seed, len(self.x), self.x.dtype)
        for v in self._received:
            pair = mask(self._pair(v), len(y), y.dtype)
            y = y + pair if v > self.number else y - pair
        return Masked(y, digest_of_list([*received, self.number]))

    def consistency(self, survivors: list[int], dropped: list[int]) -> Signature:
        """Round 3. survivors: whose y the server has;  dropped: the others of those that have sent shares.

        Raises Refused where a client is on both lists, since both its shares would give its x away; where the lists are
        not of the clients that it knows, or name one twice; where fewer than t survive; where it has answered before.
        """
        self._once("consistency", after=("masked", "not sent its numbers"))
        known = {*self._received, self.number}
        if both := sorted(set(survivors) & set(dropped)):
            raise Refused(
                f"client {self.number} was asked for both shares of {both}: together they would uncover what these "
                "have sent. It gives neither"
            )
        for names in (survivors, dropped):
            if len(set(names)) < len(names):
                raise Refused(
                    f"client {self.number} was sent the list {sorted(names)}, in which a client comes twice: it would "
                    "count twice towards the threshold"
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
        self._answered.add("consistency")
        self._lists = sorted(survivors), sorted(dropped)
        return Signature(self._sign.sign(self._statement()))

    def unmask(self, signatures: Mapping[int, Signature]) -> Shares:
        """Round 4. signatures: of the lists, by those that have sent theirs.

        Raises Refused where fewer than t of the survivors have signed the very lists that this client was sent.
        """
        self._once("unmask", after=("consistency", "signed no lists"))
        survivors, dropped = self._lists
        self._check_signatures(signatures)
        self._answered.add("unmask")
        of_key = {v: self._shares_of(v)[0] for v in dropped}
        return Shares({v: self._shares_of(v)[1] for v in survivors}, of_key)

    # --- its parts ------------------------------------------------------------------------------------------

    def _check_signatures(self, signatures: Mapping[int, Signature]) -> None:
        statement = self._statement()
        same = {
            v
            for v, one in signatures.items()
            if v in self._lists[0] and signed_by(self._keys[v].sign, one.signature, statement)
        }
        if len(same) < self.threshold:
            raise Refused(
                f"client {self.number} has {len(same)} signatures of the lists that it was sent, and {self.threshold} "
                f"are the threshold; those of {sorted(set(signatures) - same)} do not fit: the server may have sent "
                "them other lists, to learn the sum of few"
            )

    def _statement(self) -> bytes:
        """What is signed: all keys, who has sent shares, who has sent y."""
        keys = [(v, one.seal, one.mask, one.sign) for v, one in sorted(self._keys.items())]
        return digest(repr((keys, *self._lists)).encode())

    def _once(self, name: str, after: tuple[str, str] | None = None) -> None:
        """Raises Refused where it has answered this round, or has not yet answered the one before."""
        if after is not None and after[0] not in self._answered:
            raise Refused(f"client {self.number} has {after[1]}, and answers no later round")
        if name in self._answered:
            raise Refused(
                f"client {self.number} was asked a second time in the round {name!r}, and answers once: from answers "
                "to two lists a server could take off the masks of a client"
            )

    def _need(self, num: int, what: str) -> None:
        if num < self.threshold:
            raise Refused(
                f"client {self.number} stops: {num} clients {what}, and {self.threshold} are the threshold"
            )

    def _channel(self, v: int) -> bytes:
        return self._agree(v, self._seal, self._keys[v].seal, b"seal")

    def _pair(self, v: int) -> bytes:
        return self._agree(v, self._mask, self._keys[v].mask, b"mask")

    def _agree(self, v: int, pair: KeyPair, public: bytes, purpose: bytes) -> bytes:
        try:
            return pair.agree(public, purpose)
        except ValueError as error:
            raise Refused(
                f"client {self.number} cannot agree on a key with client {v}'s public key: {error}"
            ) from None

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
        if len(plain) != 2 * half:
            raise Refused(
                f"client {self.number} was sent {len(plain)} bytes by client {v} for two shares, which have {2 * half}"
            )
        return int.from_bytes(plain[:half]), int.from_bytes(plain[half:])


def _context(sender: int, receiver: int) -> bytes:
    return f"{sender} to {receiver}".encode()
