"""Vectors, messages and numbers that do not fit: refused, or left out so that the sum is exact without them."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from dtcourse import launch
from dtcourse.federated import FixedPoint, SecureClient, SecureServer, secure_sum
from dtcourse.federated.clients import place_in
from dtcourse.federated.secure.messages import Shares
from tests.federated.references import rounded_sum

pytest.importorskip("cryptography")
N, NUMBERS, THRESHOLD = 5, (0, 1, 2, 3, 4), 3
VECTORS = {k: torch.randn(N, generator=torch.Generator().manual_seed(k)).double() for k in NUMBERS}


# --- vectors of another shape ----------------------------------------------------------------------------------


def test_only_a_vector_of_whole_numbers_is_masked():
    """(1, n) had one mask number for all n: len() is 1."""
    for x in (
        torch.zeros(1, 50, dtype=torch.int32),
        torch.zeros((), dtype=torch.int32),
        torch.zeros(0, dtype=torch.int32),
        torch.zeros(50),
        torch.zeros(50, dtype=torch.int16),
    ):
        with pytest.raises(ValueError, match=r"\(n,\) of int32 or int64"):
            SecureClient(0, x, 2)


def test_vectors_of_different_shapes_are_refused_before_anything_is_sent():
    for other, words in (
        (torch.zeros(1, N), r"client 2: \(1, 5\)"),
        (torch.zeros(N + 1), r"client 2: \(6,\)"),
        (torch.zeros(()), r"client 2: \(\)"),
    ):
        with pytest.raises(ValueError, match=words):
            secure_sum({**VECTORS, 2: other}, THRESHOLD, len(VECTORS))
    with pytest.raises(ValueError, match="5 clients have vectors, and num_clients is 4"):
        secure_sum(VECTORS, THRESHOLD, 4)


# --- messages that are left out --------------------------------------------------------------------------------


def total_without(k, **options):
    """The sum goes on without client k, and is exact."""
    found = secure_sum(VECTORS, THRESHOLD, len(VECTORS), **options)
    assert found.survivors == [v for v in NUMBERS if v != k]
    assert found.total.tolist() == rounded_sum(VECTORS, found.survivors, FixedPoint())
    return found.lost[k]


def test_a_client_that_leaves_a_share_out_is_left_out():
    class Sparing(SecureClient):
        def share(self, keys):
            sent = super().share(keys)
            if self.number == 1:
                few = {v: m for v, m in sent.messages.items() if v != 3}
                return dataclasses.replace(sent, messages=few)
            return sent

    assert "client 1 has sent no share for [3]" in total_without(1, make_client=Sparing)


def test_a_share_lost_on_its_way_leaves_its_receiver_out():
    class Losing(SecureServer):
        def pass_shares(self, came):
            out = super().pass_shares(came)
            del out[3][1]
            return out

    assert "client 3 has masked its numbers for other clients" in total_without(
        3, make_server=Losing
    )


def test_numbers_of_another_length_are_left_out():
    class Longer(SecureClient):
        def masked(self, sealed):
            sent = super().masked(sealed)
            if self.number == 4:
                return dataclasses.replace(sent, y=sent.y.repeat(2))
            return sent

    assert "client 4 has sent numbers of shape (10,)" in total_without(4, make_client=Longer)


def test_a_share_left_out_in_the_last_round_does_not_stop_it():
    class Sparing(SecureClient):
        def unmask(self, signatures):
            sent = super().unmask(signatures)
            if self.number == 1:
                return Shares({u: s for u, s in sent.of_seed.items() if u != 3}, sent.of_key)
            return sent

    found = secure_sum(VECTORS, THRESHOLD, len(VECTORS), make_client=Sparing)
    assert found.total.tolist() == rounded_sum(VECTORS, NUMBERS, FixedPoint())
    assert "client 1 has sent no share of client 3" in found.lost[1]


def test_a_key_that_agrees_with_nobody_leaves_its_owner_out():
    class Small(SecureClient):
        def advertise(self):
            keys = super().advertise()
            return dataclasses.replace(keys, mask=bytes(32)) if self.number == 2 else keys

    assert "client 2 has advertised a key that agrees with none" in total_without(
        2, make_client=Small
    )


# --- whole numbers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("num", [1, 2, 3, 7, 100])
def test_the_largest_number_that_is_promised_does_not_overflow(bits, num):
    fixed = FixedPoint(20, bits)
    top = fixed.largest(num)
    for sign in (1, -1):
        one = int(fixed.encode(torch.tensor([sign * top], dtype=torch.float64), num))
        assert one == sign * int(top * 2**20)
        assert abs(num * one) < 2 ** (bits - 1)
    # the next whole number, or the next double where these are further apart
    above = torch.tensor([max(top + 2.0**-20, math.nextafter(top, math.inf))], dtype=torch.float64)
    with pytest.raises(ValueError, match="does not fit"):
        fixed.encode(above, num)


def test_what_is_no_number_is_refused_by_the_encoding_too():
    for bad in (torch.nan, torch.inf, -torch.inf):
        with pytest.raises(ValueError, match="NaN or infinite"):
            FixedPoint().encode(torch.tensor([0.0, bad]), 3)
    with pytest.raises(ValueError, match="1 client or more; got 0"):
        FixedPoint().encode(torch.zeros(1), 0)


# --- ranks that differ -----------------------------------------------------------------------------------------


def ranks_that_differ():
    rank, p = place_in()
    mine = {k: x for k, x in VECTORS.items() if k % p == rank}
    said = []
    for vectors, threshold, num, encoding in (
        (mine, 3 + rank, 5, None),
        (mine, 3, 5 + rank, None),
        (mine, 3, 5, FixedPoint(16 + rank)),
        ({**mine, 0: VECTORS[0]}, 3, 5, None),
        ({k: x[: N - rank] for k, x in mine.items()}, 3, 5, None),
    ):
        with pytest.raises(ValueError) as refused:
            secure_sum(vectors, threshold, num, encoding)
        said.append(str(refused.value))

    class Broken(SecureClient):
        def masked(self, sealed):
            if self.number == 1:
                raise RuntimeError("out of memory")
            return super().masked(sealed)

    class BrokenServer(SecureServer):
        def ask(self, came):
            raise RuntimeError("out of memory")

    for option in ({"make_client": Broken}, {"make_server": BrokenServer}):
        with pytest.raises((ValueError, RuntimeError)) as refused:
            secure_sum(mine, 3, 5, **option)
        said.append(str(refused.value))
    return said


def test_ranks_that_differ_are_told_so():
    words = (
        "threshold differs between the ranks: 3 on rank 0; 4 on rank 1",
        "num_clients differs",
        "encoding differs",
        "6 vectors are of 5 clients",
        "client 1: (4,), client 3: (4,), unlike 3 others, which are (5,)",
        "out of memory",
        "out of memory",
    )
    for said in launch(ranks_that_differ, 2, backend="ring", timeout=240):
        for sentence, right in zip(said, words, strict=True):
            assert right in sentence
