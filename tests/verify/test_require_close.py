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
        (lambda x: x.flip(0), "points elsewhere"),
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
