"""Secure aggregation: exact sums whoever drops out in which round; what a curious server and a bad share meet."""

from __future__ import annotations

import dataclasses
import itertools
import sys

import pytest
import torch
import torch.nn.functional as F

from dtcourse import launch
from dtcourse.federated import (
    ClientWork,
    FedAvg,
    FixedPoint,
    SecureClient,
    SecureFedAvg,
    SecureServer,
    Stopped,
    secure_sum,
)
from dtcourse.federated.clients import place_in
from dtcourse.federated.secure import shamir
from dtcourse.federated.secure.client import Refused
from dtcourse.federated.secure.keys import KeyPair, digest, library, mask, seal, unseal
from dtcourse.federated.secure.messages import Shares
from tests.federated.references import LR, SEED, build, federation, rounded_sum

pytest.importorskip("cryptography")
N, NUMBERS, THRESHOLD = 33, (2, 3, 5, 8, 13, 21, 34), 4
VECTORS = {k: torch.randn(N, generator=torch.Generator().manual_seed(k)).double() for k in NUMBERS}


def rounded(among, encoding):
    return rounded_sum(VECTORS, among, encoding)


def aggregate(dropouts=None, encoding=None, vectors=VECTORS, **options):
    rank, p = place_in()
    mine = {k: x for k, x in vectors.items() if k % p == rank}
    return secure_sum(mine, THRESHOLD, len(vectors), encoding, dropouts=dropouts, **options)


DROPOUTS = {
    "nobody": {},
    "before advertise": {3: "advertise"},
    "before share": {8: "share"},
    "before masked": {5: "masked", 34: "masked"},
    "before consistency": {13: "consistency"},
    "before unmask": {2: "unmask"},
    "in each": {3: "advertise", 8: "masked", 21: "unmask"},
}


def all_dropouts():
    found = {}
    for name, dropouts in DROPOUTS.items():
        for encoding in (FixedPoint(), FixedPoint(40, 64)):
            one = aggregate(dropouts, encoding)
            found[name, encoding] = one.total, one.survivors, one.lost, one.nbytes, one.view is None
    with pytest.raises(Stopped) as stopped:
        aggregate(dict.fromkeys(NUMBERS[:4], "masked"))
    # a number that does not fit is on one rank, and refused on all
    with pytest.raises(ValueError, match=r"does not fit|could not go on"):
        aggregate(vectors={**VECTORS, 8: VECTORS[8] * 1e5})
    federated, reports = secure_training({})
    return found, str(stopped.value), federated, reports


def secure_training(dropouts, threshold=4):
    work = ClientWork(F.cross_entropy, LR, 2, 5)
    federated = SecureFedAvg(
        build(),
        federation(),
        work,
        6,
        SEED,
        threshold=threshold,
        encoding=FixedPoint(32, 64),
        dropouts=dropouts,
    )
    reports = [federated.round() for _ in range(2)]
    return federated.x, reports


@pytest.mark.parametrize("p", [1, 2])
def test_sums_are_exact_whoever_drops_out(p):
    run = [all_dropouts()] if p == 1 else list(launch(all_dropouts, p, backend="ring", timeout=240))
    plain = FedAvg(build(), federation(), ClientWork(F.cross_entropy, LR, 2, 5), 6, SEED)
    wanted = [plain.round() for _ in range(2)]
    for rank, (found, stopped, x, reports) in enumerate(run):
        for (name, encoding), (total, survivors, lost, nbytes, hidden) in found.items():
            dropouts = DROPOUTS[name]
            stays = [k for k in NUMBERS if dropouts.get(k, "unmask") in ("consistency", "unmask")]
            assert survivors == stays
            assert total.tolist() == rounded(stays, encoding)  # to the last bit
            assert sorted(lost) == sorted(dropouts)
            assert hidden == (rank > 0)
            before = [sum(dropouts.get(k) in after for k in NUMBERS) for after in ROUNDS_BEFORE]
            u1, u2, u3, u4, u5 = (len(NUMBERS) - gone for gone in before)
            assert nbytes == {
                "advertise": 96 * u1,
                "share": u2 * (32 + 160 * (u1 - 1)),
                "masked": u3 * (32 + N * encoding.dtype.itemsize),
                "consistency": u4 * 64,
                "unmask": u5 * 66 * u2,
            }
        assert "3 clients sent their numbers, and 4 are the threshold" in stopped
        assert "client 2 dropped out before the round 'masked'" in stopped
        torch.testing.assert_close(x, plain.x, rtol=0, atol=1e-7)
        assert not torch.equal(x, plain.x)
        assert [r.trained for r in reports] == [r.trained for r in wanted]


ROUNDS = ("advertise", "share", "masked", "consistency", "unmask")
ROUNDS_BEFORE = [ROUNDS[: i + 1] for i in range(5)]


def test_a_round_goes_on_or_stops():
    clients = federation()
    drawn = clients.drawn(6, SEED, 0)
    trained = [k for k in drawn if clients.sizes[k]]
    _, reports = secure_training({trained[0]: "masked"})
    assert trained[0] not in reports[0].trained
    assert "dropped out before" in reports[0].skipped[trained[0]]
    start = secure_training(dict.fromkeys(range(11), "share"))
    assert torch.equal(start[0], torch.cat([p.detach().flatten() for p in build().parameters()]))
    assert "0 clients sent shares, and 4 are the threshold" in start[1][0].skipped[trained[0]]
    few = secure_training({trained[0]: "advertise"}, threshold=6)[1][0]
    assert not few.trained
    assert "5 clients advertised their keys, and 6 are the threshold" in few.skipped[trained[1]]


# --- a curious server ------------------------------------------------------------------------------------------


def test_the_server_sees_nothing_of_one_client():
    """y_u alone is like chance; and with the key of a client whose y came late, its own seed still covers it."""
    n = 20_000
    vectors = {k: torch.full((n,), 0.25).double() for k in NUMBERS}
    late = {}

    class Late(SecureClient):
        def masked(self, sealed):
            y = super().masked(sealed)
            if self.number == 8:
                late["y"], late["client"] = y.y, self
                raise Refused("client 8 is late")
            return y

    found = aggregate(vectors=vectors, make_client=Late)
    view = found.view
    assert 8 not in found.survivors
    shares = {v: s.of_key[8] for v, s in view.shares.items()}
    key, _ = shamir.join(shares, THRESHOLD)
    pair = KeyPair.of(key)
    assert pair.public == view.keys[8].mask  # the server has 8's key, as it should
    uncovered = late["y"]
    for v in found.survivors:
        pairwise = mask(pair.agree(view.keys[v].mask, b"mask"), n, uncovered.dtype)
        uncovered = uncovered + (pairwise if v < 8 else -pairwise)
    right = FixedPoint().encode(vectors[8], len(NUMBERS))
    for y in (*view.masked.values(), uncovered):
        # uniform: the mean of n numbers has a deviation of 2^32 / sqrt(12 n)
        assert abs(y.double().mean()) < 5 * 2**32 / (12 * n) ** 0.5
        assert len(y.unique()) > 0.99 * n
    assert torch.equal(uncovered - mask(late["client"]._seed, n, uncovered.dtype), right)
    assert all(not (set(s.of_key) & set(s.of_seed)) for s in view.shares.values())


def test_who_asks_for_both_shares_gets_none():
    class Curious(SecureServer):
        def ask(self, came):
            return {u: (s, [8]) for u, (s, _) in super().ask(came).items()}

    with pytest.raises(
        Stopped, match=r"client 2 was asked for both shares of \[8\].*It gives neither"
    ):
        aggregate(make_server=Curious)

    class Fewer(SecureServer):
        def ask(self, came):
            return {u: (sorted({u, 2, 3}), sorted(set(came) - {u, 2, 3})) for u in came}

    with pytest.raises(Stopped, match="clients sent their numbers, and 4 are the threshold"):
        aggregate(make_server=Fewer)


# --- what does not fit -----------------------------------------------------------------------------------------


class WrongShare(SecureClient):
    """3 sends a share of client 5 that is another number."""

    def unmask(self, signatures):
        found = super().unmask(signatures)
        if self.number != 3:
            return found

        def wrong(shares):
            return {v: share + (v == 5) for v, share in shares.items()}

        return Shares(wrong(found.of_seed), wrong(found.of_key))


@pytest.mark.parametrize("dropouts", [{}, {5: "masked"}])
def test_a_share_that_does_not_fit_is_named_and_left_out(dropouts):
    found = aggregate(dropouts, make_client=WrongShare)
    assert found.total.tolist() == rounded([k for k in NUMBERS if k not in dropouts], FixedPoint())
    assert "the share of client 5 that client 3 has sent does not fit" in found.lost[3]
    # exactly as many shares as are needed, one of them wrong
    gone = dropouts | {k: "unmask" for k in NUMBERS if k not in (2, 3, 5, 8)}
    gone.pop(13) if dropouts else None
    with pytest.raises(Stopped, match=r"the secret of client 5 is not to be had.*some do not fit"):
        aggregate(gone, make_client=WrongShare)


def test_what_was_changed_on_its_way_is_refused():
    class Changing(SecureServer):
        def pass_shares(self, came):
            out = super().pass_shares(came)
            out[2][3] = out[2][3][:-1] + bytes([out[2][3][-1] ^ 1])
            return out

    found = aggregate({3: "masked"}, make_server=Changing)
    assert "client 2 cannot open the shares of client 3: the message was changed" in found.lost[2]
    assert found.total.tolist() == rounded([k for k in NUMBERS if k != 3], FixedPoint())
    key = bytes(32)
    assert unseal(key, seal(key, b"text", b"a"), b"a") == b"text"
    with pytest.raises(ValueError, match="not for this client"):
        unseal(key, seal(key, b"text", b"a"), b"b")

    class Twins(SecureServer):
        def pass_keys(self, came):
            out = super().pass_keys(came)
            return {**out, 99: dataclasses.replace(out[2])}

    with pytest.raises(Stopped, match="a public key comes twice"):
        aggregate(make_server=Twins)


def test_shares():
    secret = bytes(range(32))
    shares = shamir.split(secret, 3, [0, 4, 9, 11, 12])
    for some in itertools.combinations(shares, 3):
        assert shamir.join({v: shares[v] for v in some}, 3) == (secret, [])
    # two shares fit every secret: there is a third one for each
    for other in (0, 1, 2**200):
        points = {-1: other, 0: shares[0], 4: shares[4]}  # x = v + 1
        assert shamir.at_zero(points) == other
    assert shamir.at_zero({0: shares[0], 4: shares[4]}) != int.from_bytes(secret)
    wrong = {**shares, 0: shares[0] + 1}
    assert shamir.join(wrong, 3, lambda s: s == secret) == (secret, [0])
    assert digest(secret) != digest(bytes(32))
    # the first of many: in order, it would be in 75,582 choices before one without it
    many = shamir.split(secret, 12, range(20))
    assert shamir.join({**many, 0: many[0] + 1}, 12, lambda s: s == secret) == (secret, [0])


def test_numbers():
    fixed = FixedPoint(8, 32)
    x = torch.tensor([0.5, -1.25, 1 / 3, 2.0**20])
    back = fixed.decode(fixed.encode(x, 4))
    assert torch.equal(back[[0, 1, 3]], x[[0, 1, 3]].double())
    assert abs(back[2] - 1 / 3) <= 2**-9
    top = fixed.largest(4)
    total = torch.stack([fixed.encode(torch.tensor([top], dtype=torch.float64), 4)] * 4).sum(
        0, dtype=torch.int32
    )
    assert fixed.decode(total) == 4 * top
    for attempt, words in (
        (
            lambda: fixed.encode(torch.tensor([top * 1.001]), 4),
            "4 clients, 32 bits and 8 after the point",
        ),
        (
            lambda: aggregate(vectors={**VECTORS, 2: VECTORS[2] / 0}),
            "NaN or infinite.*Nothing was sent",
        ),
        (lambda: FixedPoint(32, 32), "bits is 32 or 64"),
        (lambda: shamir.split(b"1", 3, [1, 2]), "a threshold of 3 is not possible with 2"),
        (lambda: shamir.split(b"1", 2, [1, 1]), "different numbers"),
        (lambda: SecureServer(1), "the threshold is 2 or more"),
        (lambda: aggregate({2: "later"}), "before one of the rounds"),
        (
            lambda: SecureFedAvg(
                build(), federation(), ClientWork(F.cross_entropy, LR), 6, threshold=3
            ),
            "more than half of the 6 clients of a round, 4 to 6; got 3",
        ),
        (
            lambda: SecureFedAvg(
                build(), federation(), ClientWork(F.cross_entropy, LR), threshold=6, compress=id
            ),
            "leave compress out",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            attempt()


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(ImportError, match=r"pip install 'dtcourse\[federated\]'"):
        library()
