r"""The server of secure aggregation: it passes sealed messages on, adds what came, and takes the masks off.

    U1  advertised keys     U2  sent shares     U3  sent y     U4  signed the lists     U5  sent shares to unmask

    sum_{u in U3} x_u = sum y_u - sum_{u in U3} PRG(b_u) - sum_{u in U3, v in U2 \ U3} +- PRG(s_uv)

Of who stayed it learns b, of who dropped out after U2 s, never both. Everything that it receives is kept in `view`, in
which a test, or a reader, may look for what it could know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dtcourse.federated.secure import shamir
from dtcourse.federated.secure.keys import SEALED_BYTES, KeyPair, digest, mask
from dtcourse.federated.secure.messages import (
    Keys,
    Masked,
    Sealed,
    Shares,
    Signature,
    check_threshold,
    digest_of_list,
)

Fits = Callable[[bytes], bool]


class Stopped(ValueError):
    """The aggregation cannot go on: nobody learns the sum."""


@dataclass
class View:
    """All that the server has received, by client."""

    keys: dict[int, Keys] = field(default_factory=dict)
    sealed: dict[int, Sealed] = field(default_factory=dict)
    masked: dict[int, Tensor] = field(default_factory=dict)
    signatures: dict[int, Signature] = field(default_factory=dict)
    shares: dict[int, Shares] = field(default_factory=dict)


class SecureServer:
    """A server that keeps to the protocol. Each method takes what came in a round and gives what goes out.

    threshold: t; a round in which fewer clients answer stops it: Stopped
    misfits:   client -> the sentence on a message of its that did not fit

    A client whose message is not whole is taken for one that has sent none, so that its masks do not stay in the sum.
    """

    def __init__(self, threshold: int) -> None:
        check_threshold(threshold)
        self.threshold, self.view = threshold, View()
        self.misfits: dict[int, str] = {}

    def pass_keys(self, came: Mapping[int, Keys]) -> dict[int, Keys]:
        """Round 0: everybody's public keys, to everybody."""
        whole, trial = {}, KeyPair.drawn()
        for u, keys in came.items():
            try:
                trial.agree(keys.seal, b"trial"), trial.agree(keys.mask, b"trial")
                whole[u] = keys
            except ValueError as error:
                self.misfits[u] = (
                    f"client {u} has advertised a key that agrees with none, and is left out: {error}"
                )
        self._need(whole, "advertised their keys")
        self.view.keys.update(whole)
        return whole

    def pass_shares(self, came: Mapping[int, Sealed]) -> dict[int, dict[int, bytes]]:
        """Round 1: to each client that has sent shares, those that are for it."""
        whole = {}
        for u, sent in came.items():
            right = {v for v, m in sent.messages.items() if len(m) == SEALED_BYTES}
            if missing := sorted(set(self.view.keys) - right - {u}):
                self.misfits[u] = (
                    f"client {u} has sent no share for {missing}: it is left out of the sum"
                )
            else:
                whole[u] = sent
        self._need(whole, "sent shares")
        self.view.sealed.update(whole)
        return {v: {u: sent.messages[v] for u, sent in whole.items() if u != v} for v in whole}

    def ask(self, came: Mapping[int, Masked]) -> dict[int, tuple[list[int], list[int]]]:
        """Round 2: the lists of who has sent y, and who has sent shares and no y; the same to all who are left."""
        among = digest_of_list(self.view.sealed)
        shapes = Counter((sent.y.shape, sent.y.dtype) for sent in came.values())
        usual = shapes.most_common(1)[0][0] if shapes else None
        whole = {}
        for u, sent in came.items():
            if sent.among != among:
                self.misfits[u] = (
                    f"client {u} has masked its numbers for other clients than those that have sent shares: a message "
                    "to it was lost. It is left out of the sum"
                )
            elif (sent.y.shape, sent.y.dtype) != usual:
                self.misfits[u] = (
                    f"client {u} has sent numbers of shape {tuple(sent.y.shape)} and {sent.y.dtype}, unlike "
                    "the others: it is left out of the sum"
                )
            else:
                whole[u] = sent.y
        self._need(whole, "sent their numbers")
        self.view.masked.update(whole)
        survivors, dropped = sorted(whole), sorted(set(self.view.sealed) - set(whole))
        return dict.fromkeys(survivors, (survivors, dropped))

    def pass_signatures(self, came: Mapping[int, Signature]) -> dict[int, dict[int, Signature]]:
        """Round 3: all signatures, to all who have signed."""
        self._need(came, "signed the lists")
        self.view.signatures.update(came)
        return {v: dict(came) for v in came}

    def total(self, came: Mapping[int, Shares]) -> Tensor:
        """Round 4: the sum of all that have sent y, (n,), modulo 2^k."""
        self._need(came, "sent shares to unmask")
        self.view.shares.update(came)
        masked = self.view.masked
        total = torch.stack(list(masked.values())).sum(0, dtype=next(iter(masked.values())).dtype)
        n, dtype = len(total), total.dtype
        for u in masked:
            seed = self._joined(
                u, {v: s.of_seed.get(u) for v, s in came.items()}, self._seed_fits(u)
            )
            total -= mask(seed, n, dtype)
        for u in sorted(set(self.view.sealed) - set(masked)):
            key = self._joined(u, {v: s.of_key.get(u) for v, s in came.items()}, self._key_fits(u))
            pair = KeyPair.of(key)
            for v in masked:
                both = mask(pair.agree(self.view.keys[v].mask, b"mask"), n, dtype)
                # v has added it where v < u
                total = total - both if u > v else total + both
        return total

    # --- its parts ------------------------------------------------------------------------------------------

    def _need(self, came: Mapping[int, object], what: str) -> None:
        if len(came) < self.threshold:
            raise Stopped(
                f"the round stops: {len(came)} clients {what}, and {self.threshold} are the threshold. The model "
                "stays as it is; draw more clients, or take a lower threshold, which is more than half of them"
                + "".join(f". {sentence}" for sentence in self.misfits.values())
            )

    def _seed_fits(self, u: int) -> Fits:
        return lambda secret: digest(secret) == self.view.sealed[u].digest

    def _key_fits(self, u: int) -> Fits:
        return lambda secret: KeyPair.of(secret).public == self.view.keys[u].mask

    def _joined(self, owner: int, came: dict[int, int | None], fits: Fits) -> bytes:
        for holder in (v for v, share in came.items() if share is None):
            self.misfits[holder] = f"client {holder} has sent no share of client {owner}"
        shares = {v: share for v, share in came.items() if share is not None}
        try:
            secret, wrong = shamir.join(shares, self.threshold, fits)
        except ValueError as error:
            raise Stopped(
                f"the round stops: the secret of client {owner} is not to be had: {error}"
            ) from None
        for holder in wrong:
            self.misfits[holder] = (
                f"the share of client {owner} that client {holder} has sent does not fit: it sends another one, or "
                f"client {owner} gave it a wrong one. It is left out, and the round goes on with the others'"
            )
        return secret
