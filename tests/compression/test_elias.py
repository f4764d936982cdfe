"""Elias's codes: the published ones, back without loss, bytes by the codes' lengths, and the mean over ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.collectives import traffic
from dtcourse.compression import QSGD, EliasQSGD, average
from dtcourse.compression.compressor import from_bytes, to_bytes
from dtcourse.compression.quantized.elias import STRETCH, decode, encode, omega


def vector(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def test_the_codes_of_elias():
    # P. Elias, Universal codeword sets, 1975
    published = {1: "0", 2: "100", 3: "110", 4: "101000", 7: "101110", 8: "1110000"}
    published |= {15: "1111110", 16: "10100100000", 100: "1011011001000"}
    assert {number: omega(number) for number in published} == published


@pytest.mark.parametrize("n", [1, 7, 1000])
def test_codes_come_back_one_bit_behind_the_other(n):
    codes = torch.randint(-127, 128, (n,), generator=torch.Generator().manual_seed(n))
    codes[::2] = 0
    codes = codes.to(torch.int8)
    coded = encode(codes)
    bits = sum(len(omega(abs(code) + 1)) + (code != 0) for code in codes.tolist())
    assert len(coded) == -(-bits // 8)
    assert torch.equal(decode(coded, n), codes)


def test_the_first_bit_is_in_the_lowest_place():
    # 0: "0"; 1: "100" and "0" for above zero; -2: "110" and "1"
    assert encode(torch.tensor([0, 1, -2], dtype=torch.int8)).tolist() == [0b01100010, 0b1]


@pytest.mark.parametrize("n", [0, 1, 513, STRETCH, STRETCH + 700])
@pytest.mark.parametrize("levels", [1, 7, 127])
def test_its_numbers_are_qsgds(levels, n):
    x, plain, coded = vector(n, levels), QSGD(levels), EliasQSGD(levels)
    payload = coded.compress(x)
    message = to_bytes(payload)
    assert len(message) <= coded.nbytes(n)
    again = coded.decompress(from_bytes(message, coded, n))
    assert torch.equal(again, plain.decompress(plain.compress(x)))
    if n > 1000:
        assert len(message) < plain.nbytes(n)


def test_the_longest_codes_fit_what_it_says_they_may_take():
    # in buckets of one number: all of them the largest level
    x = torch.tensor([3.0, -4.0]).repeat(500)
    for levels in (1, 7, 127):
        coded = EliasQSGD(levels, bucket=1)
        payload = coded.compress(x)
        assert sum(t.nbytes for t in payload.wire) == coded.nbytes(1000)
        torch.testing.assert_close(coded.decompress(payload), x)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_is_seen_afterwards(bad):
    x = vector(2000)
    x[700] = bad
    y = (coded := EliasQSGD(127)).decompress(coded.compress(x))
    assert y[512:1024].isnan().all() and y[:512].isfinite().all() and y[1024:].isfinite().all()


def averaged():
    x = vector(3000, dist.get_rank())
    with traffic.counting() as counted:
        mean = average(x, EliasQSGD())
    payload = (coded := EliasQSGD()).compress(x)
    nbytes = sum(t.nbytes for t in payload.wire)
    return mean, coded.decompress(payload), nbytes, counted.bytes_sent()


def test_the_mean_over_ranks_and_its_bytes():
    means, parts, nbytes, sent = zip(*launch(averaged, 2, backend="ring"), strict=True)
    assert nbytes[0] != nbytes[1], "they differ"
    for mean in means:
        torch.testing.assert_close(mean, (parts[0] + parts[1]) / 2)
    # The lengths, then as much from each as the longest has.
    assert sent == (8 + max(nbytes),) * 2
