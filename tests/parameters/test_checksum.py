"""The checksum of a tensor: any bit counts, and so does its place."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dtcourse.parameters.checksum import checksum

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), st.sampled_from(DTYPES), st.data())
def test_any_one_bit_changes_it(length, dtype, data):
    generator = torch.Generator().manual_seed(length)
    x = (torch.randn(length, generator=generator) * 50).abs().to(dtype)
    bits = x.clone().view(torch.uint8)
    place = data.draw(st.integers(0, bits.numel() - 1))
    bits[place] ^= 1 << data.draw(st.integers(0, 7))
    assert checksum(bits.view(dtype)) != checksum(x)


def test_order_counts_and_layout_does_not():
    x = torch.arange(12.0).view(3, 4)
    assert checksum(x) != checksum(x.flip(0))
    assert checksum(x.t()) == checksum(x.t().contiguous())
    assert checksum(torch.tensor([torch.nan])) == checksum(torch.tensor([torch.nan]))
    assert checksum(torch.tensor([0.0])) != checksum(torch.tensor([-0.0]))
    assert checksum(torch.complex(x, -x)) != checksum(torch.complex(x, x))
    assert checksum(torch.empty(0)) == 0
    assert checksum(torch.tensor([True])) != checksum(torch.tensor([False]))
    assert checksum(x.flatten()[1:9]) == checksum(x.flatten()[1:9].clone()), "it begins anywhere"


def test_a_number_and_its_negative_that_change_places():
    """Their words differ in the sign alone, which is the last bit: times an even distance it would be gone."""
    for dtype in (torch.float64, torch.float32):
        x = torch.ones(8, dtype=dtype)
        one, other = x.clone(), x.clone()
        one[1] = other[5] = -1.0
        assert checksum(one) != checksum(other), dtype


def test_in_parts_as_in_one(monkeypatch):
    x = torch.randn(1000)
    whole = checksum(x)
    monkeypatch.setattr("dtcourse.parameters.checksum._PART", 7)
    assert checksum(x) == whole
