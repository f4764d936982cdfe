r"""The server of secure aggregation: it passes sealed messages on, adds what came, and takes the masks off.

    U1  advertised keys          U2  sent shares          U3  sent y          U4  sent shares to unmask

    sum_{u in U3} x_u = sum y_u - sum_{u in U3} PRG(b_u) - sum_{u in U3, v in U2 \ U3} +- PRG(s_uv)

Of who stayed it learns b, of who dropped out after U2 s, never both. Everything that it receives is kept in `view`, in
which a test, or a reader, may look for what it could know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dtcourse.federated.secure import shamir
from dtcourse.federated.secure.client import Keys, Sealed, Shares
from dtcourse.federated.secure.keys import KeyPair, digest, mask

Fits = Callable[[bytes], bool]


class Stopped(ValueError):
    """The aggregation cannot go on: nobody learns the sum."""


@dataclass
class View:
    """All that the server has received, by client."""

    keys: dict[int, Keys] = field(default_factory=dict)
    sealed: dict[int, Sealed] = field(default_factory=dict)
    masked: dict[int, Tensor] = field(default_factory=dict)
    shares: dict[int, Shares] = field(default_factory=dict)


class SecureServer:
    """A server that keeps to the protocol. Each method takes what came in a round and gives what goes out.

    threshold: t; a round in which fewer clients answer stops it: Stopped
    misfits:   holder -> the sentence on a share of its that did not fit
    """

    def __init__(self, threshold: int) -> None:
        if threshold < 2:
            raise ValueError(
                f"the threshold is 2 or more, since the sum of one client is what it has; got {threshold}"
            )
        self.threshold, self.view = threshold, View()
        self.misfits: dict[int, str] = {}

    def pass_keys(self, came: Mapping[int, Keys]) -> dict[int, Keys]:
        """Round 0: everybody's public keys, to everybody."""
        self._need(came, "advertised their keys")
        self.view.keys.update(came)
        return dict(came)

    def pass_shares(self, came: Mapping[int, Sealed]) -> dict[int, dict[int, bytes]]:
        """Round 1: to each client that has sent shares, those that are for it."""
        self._need(came, "sent shares")
        self.view.sealed.update(came)
        return {
            v: {u: sent.messages[v] for u, sent in came.items() if u != v and v in sent.messages}
            for v in came
        }

    def ask(self, came: Mapping[int, Tensor]) -> dict[int, tuple[list[int], list[int]]]:
        """Round 2: the lists of who has sent y, and who has sent shares and no y; the same to all who are left."""
        self._need(came, "sent their numbers")
        self.view.masked.update(came)
        survivors, dropped = sorted(came), sorted(set(self.view.sealed) - set(came))
        return dict.fromkeys(survivors, (survivors, dropped))

    def total(self, came: Mapping[int, Shares]) -> Tensor:
        """Round 3: the sum of all that have sent y, (n,), modulo 2^k."""
        self._need(came, "sent shares to unmask")
        self.view.shares.update(came)
        masked = self.view.masked
        total = torch.stack(list(masked.values())).sum(0, dtype=next(iter(masked.values())).dtype)
        n, dtype = len(total), total.dtype
        for u in masked:
            seed = self._joined(u, {v: s.of_seed[u] for v, s in came.items()}, self._seed_fits(u))
            total -= mask(seed, n, dtype)
        for u in sorted(set(self.view.sealed) - set(masked)):
            key = self._joined(u, {v: s.of_key[u] for v, s in came.items()}, self._key_fits(u))
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
                "stays as it is; draw more clients, or take a lower threshold"
            )

    def _seed_fits(self, u: int) -> Fits:
        return lambda secret: digest(secret) == self.view.sealed[u].digest

    def _key_fits(self, u: int) -> Fits:
        return lambda secret: KeyPair.of(secret).public == self.view.keys[u].mask

    def _joined(self, owner: int, shares: dict[int, int], fits: Fits) -> bytes:
        try:
            secret, wrong = shamir.join(shares, self.threshold, fits)
        except ValueError as error:
            raise Stopped(
                f"the round stops: the secret of client {owner} is not to be had: {error}"
            ) from None
        for holder in wrong:
            self.misfits[holder] = (
                f"the share of client {owner} that client {holder} has sent does not fit: it is left out, and the "
                "round goes on with the others'"
            )
        return secret
