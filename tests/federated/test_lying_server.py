"""What a client refuses to a server that lies (Bonawitz et al.), and messages that are not what they should be."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from dtcourse.federated import SecureClient, SecureServer, Stopped, secure_sum
from dtcourse.federated.secure.client import Refused
from dtcourse.federated.secure.keys import KeyPair, mask

pytest.importorskip("cryptography")
N, NUMBERS, THRESHOLD = 5, (0, 1, 2, 3, 4), 3
VECTORS = {k: torch.randn(N, generator=torch.Generator().manual_seed(k)).double() for k in NUMBERS}


def clients_with_shares():
    """Five clients that have sent shares, the keys, and what each is to be sent."""
    clients = {
        k: SecureClient(k, torch.full((N,), k, dtype=torch.int32), THRESHOLD) for k in NUMBERS
    }
    keys = {k: c.advertise() for k, c in clients.items()}
    sent = {k: c.share(keys) for k, c in clients.items()}
    return clients, keys, {v: {u: sent[u].messages[v] for u in NUMBERS if u != v} for v in NUMBERS}


def clients_with_numbers():
    clients, _, sealed = clients_with_shares()
    for k, c in clients.items():
        c.masked(sealed[k])
    return clients


@pytest.mark.parametrize(
    ("survivors", "dropped", "words"),
    [
        ([0, 0, 0], [1, 2, 3, 4], "comes twice"),
        ([0, 1, 2], [3, 4, 4], "comes twice"),
        ([0, 1], [2, 3, 4], "2 clients sent their numbers, and 3 are the threshold"),
        ([0, 1, 2, 3, 4], [4], r"both shares of \[4\]"),
        ([1, 2, 3, 4], [0], "is not on the list"),
        ([0, 1, 2, 3], [], "knows of"),
        ([0, 1, 2, 3, 9], [4], "knows of"),
    ],
)
def test_forged_lists_are_refused_and_the_right_ones_answered_after(survivors, dropped, words):
    client = clients_with_numbers()[0]
    with pytest.raises(Refused, match=words):
        client.consistency(survivors, dropped)
    assert len(client.consistency([0, 1, 2, 3], [4]).signature) == 64


def test_each_round_is_answered_once_and_in_order():
    """Two y of one client for two lists differ by the mask of a pair: with all pairs' the server has x + PRG(b)."""
    clients, keys, sealed = clients_with_shares()
    client = clients[0]
    with pytest.raises(Refused, match="a second time"):
        client.share({k: keys[k] for k in (0, 1, 2, 3)})
    with pytest.raises(Refused, match="has not sent its numbers"):
        client.consistency([0, 1, 2, 3], [4])
    with pytest.raises(Refused, match="has signed no lists"):
        client.unmask({})
    client.masked(sealed[0])
    with pytest.raises(Refused, match="a second time"):
        client.masked({k: sealed[0][k] for k in (1, 2, 3)})
    with pytest.raises(Refused, match="has sent no shares"):
        SecureClient(0, torch.zeros(N, dtype=torch.int32), 2).masked({})


def test_a_threshold_of_half_is_refused_by_the_client():
    """With two groups of t clients each, a server that sends them different lists has both secrets of one client."""
    clients = {k: SecureClient(k, torch.zeros(N, dtype=torch.int32), 2) for k in range(4)}
    keys = {k: c.advertise() for k, c in clients.items()}
    with pytest.raises(Refused, match=r"a threshold of 2 with 4 clients.*3 or more"):
        clients[0].share(keys)
    # with an invented client beside the real ones, three are no longer enough for four
    real = {k: keys[k] for k in (0, 1, 2)}
    clients[0].share(real)
    with pytest.raises(ValueError, match="threshold is 2 or more"):
        SecureClient(0, torch.zeros(N, dtype=torch.int32), 1)
    with pytest.raises(Stopped, match="a threshold of 2 with 4 clients"):
        secure_sum({k: VECTORS[k] for k in range(4)}, 2, 4)


@pytest.mark.parametrize("key", [bytes(32), b"short"])
def test_a_key_that_agrees_with_nobody_is_refused(key):
    """The point 0 gives everybody the same secret: what is sealed by it is sealed for the server."""
    for part in ("seal", "mask"):
        clients = {k: SecureClient(k, torch.zeros(N, dtype=torch.int32), 3) for k in NUMBERS}
        keys = {k: c.advertise() for k, c in clients.items()}
        keys[4] = dataclasses.replace(keys[4], **{part: key})
        with pytest.raises(Refused, match="client 4's public key"):
            clients[0].share(keys)


@pytest.mark.parametrize("lied_to", [[], [3, 4]])
def test_signatures_of_other_lists_do_not_count(lied_to):
    clients = clients_with_numbers()
    lists = {k: ([0, 1, 2, 3, 4], []) for k in NUMBERS}
    lists |= {k: ([0, 1, 3, 4], [2]) for k in lied_to}
    signed = {k: clients[k].consistency(*lists[k]) for k in NUMBERS}
    if lied_to:
        for v in lied_to:
            with pytest.raises(Refused, match=r"2 signatures.*those of \[0, 1, 2\] do not fit"):
                clients[v].unmask(signed)
        # nor does a right one under another's name, and a second time
        forged = {k: signed[k if k < 2 else 1] for k in NUMBERS}
        with pytest.raises(Refused, match="2 signatures of the lists"):
            clients[0].unmask(forged)
    assert set(clients[0].unmask(signed).of_seed) == set(NUMBERS)
    with pytest.raises(Refused, match="a second time"):
        clients[0].unmask(signed)


class OtherLists(SecureServer):
    """Sends each client a list that agrees in itself, and with t = 4 of 7 learns x_0 + x_1, of two clients."""

    OTHERS = (2, 3, 4, 5, 6)

    def ask(self, came):
        super().ask(came)
        o = self.OTHERS
        gone = {v: [o[(i + j) % 5] for j in (1, 2, 3)] for i, v in enumerate(o)}
        gone |= {0: [o[0], o[1], o[2]], 1: [o[3], o[4], o[0]]}
        return {u: ([v for v in range(7) if v not in gone[u]], sorted(gone[u])) for u in range(7)}

    def total(self, came):
        y = self.view.masked[0] + self.view.masked[1]
        for a in (0, 1):
            seed = self._joined(
                a, {v: s.of_seed.get(a) for v, s in came.items()}, self._seed_fits(a)
            )
            y = y - mask(seed, len(y), y.dtype)
        for v in self.OTHERS:  # above 0 and 1, which have added the pairs' masks
            key = self._joined(v, {u: s.of_key.get(v) for u, s in came.items()}, self._key_fits(v))
            for a in (0, 1):
                pair = KeyPair.of(key).agree(self.view.keys[a].mask, b"mask")
                y = y - mask(pair, len(y), y.dtype)
        return y


def test_other_lists_to_others_uncover_two_clients_unless_they_are_signed():
    vectors = {k: torch.full((N,), float(2**k)).double() for k in range(7)}

    class Trusting(SecureClient):
        """As in the variant for a server that is only curious: looks at no signature."""

        def _check_signatures(self, signatures):
            pass

    found = secure_sum(vectors, 4, 7, make_server=OtherLists, make_client=Trusting)
    assert found.total.tolist() == [3.0] * N  # x_0 + x_1, of which each knows the other's
    with pytest.raises(Stopped, match="1 signatures of the lists that it was sent, and 4 are the"):
        secure_sum(vectors, 4, 7, make_server=OtherLists)
