"""Two tensors compared, and what a difference looks like."""

import pytest
import torch

from dtcourse import verify
from dtcourse.course.judging import CheckFailed, require_close


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda x: None, "the output: there is none. Why?"),
        (lambda x: x[1:], r"the output: its shape is \(9,\), not \(10,\). Why\?"),
        (lambda x: 3 * x, "the output is off by 2.0e.00 of its size. .*3 times too large.* Why"),
        (lambda x: x * 0, "It is zero"),
        (lambda x: x / 0, "not finite"),
        (lambda x: x.flip(0), "No factor explains"),
        (lambda x: x + 1e-4, "off by .*e-0[45]"),
    ],
)
def test_a_difference_is_a_sentence(change, sentence):
    right = torch.arange(1.0, 11.0)
    with pytest.raises(verify.NotEqual, match=sentence):
        verify.require_close(change(right), right, "the output", hint="Why?")
    with pytest.raises(CheckFailed, match=sentence):
        require_close(change(right), right, "the output", hint="Why?")


def test_rounding_is_no_difference():
    right = torch.randn(50, dtype=torch.double)
    verify.require_close(right * (1 + 1e-9), right, "x")
    verify.require_close(right.float(), right, "x", tolerance=1e-6)
    verify.require_close(torch.empty(0), torch.empty(0), "nothing")


def said(got, right, **options):
    with pytest.raises(verify.NotEqual) as raised:
        verify.require_close(got, right, "the sum", 1e-12, **options)
    return str(raised.value)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_fewer_digits_are_named_as_such(dtype):
    """12/1 answered in single precision was "1 times too large: look for a sum where the mean belongs"."""
    right = torch.randn(1000, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    sentence = said(right.to(getattr(torch, dtype)).double(), right)
    assert f"the rounding of {dtype}" in sentence
    assert "times too" not in sentence and "elsewhere" not in sentence and "factor" not in sentence
    # A sum of rounded numbers is off by a little more.
    if dtype == "float32":
        halves = right.float().double() + (2 * right).float().double()
        assert "the rounding of float32" in said(halves, 3 * right)


@pytest.mark.parametrize(
    "factor", [1 + 1e-5, 1 - 1e-5, 1.004, 0.996, 1.009, 1.01, 0.99, 1.5, 4, 0.25]
)
@pytest.mark.parametrize("split", [False, True])
def test_no_factor_is_one(factor, split):
    right = torch.randn(1000, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    sentence = said(right * factor, right, split=split)
    assert " 1 times" not in sentence and " 0 %" not in sentence
    assert ("too large" if factor > 1 else "too small") in sentence
    assert ("micro-batches" in sentence) == (split and abs(factor - 1) > 0.009)


def test_ranks_and_batch_are_named_where_there_are_some():
    right = torch.arange(1.0, 11.0, dtype=torch.double)
    for wrong in (right.flip(0), right + 0.001 * right.flip(0), right.roll(1)):
        assert "rank" not in said(wrong, right) and "batch" not in said(wrong, right)
        assert "another rank's values" in said(wrong, right, split=True)
    assert "is a sign turned?" in said(-right, right)


def test_a_bias_too_many_is_told_from_what_is_off_elsewhere():
    right, bias = torch.randn(4, 3, 5, dtype=torch.double), torch.randn(5, dtype=torch.double)
    assert "Each row is off by the same vector" in said(right + bias, right, split=True)
    assert "Each row" not in said(right + torch.randn(4, 3, 1), right, split=True)
    assert "Each row" not in said(3 * right, right, split=True)
    assert "Each row" not in said(right[0, 0] + 1, right[0, 0])  # a vector has no rows
