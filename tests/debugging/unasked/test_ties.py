"""Choices among equal numbers of few digits, in a model's forward; not elsewhere, and not of what has the digits."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dtcourse.debugging.unasked.ties import Ties, without_answer


class Chooses(nn.Module):
    """Its forward chooses in one way."""

    def __init__(self, choose):
        super().__init__()
        self.choose = choose

    def forward(self, x):
        return self.choose(x)


def said(choose, numbers, inside=True):
    watch = Ties()
    watch.begin()
    try:
        (Chooses(choose) if inside else choose)(numbers)
    finally:
        seen = watch.end()
    return without_answer([{}, seen], [None, None])


CHOICES = [
    lambda x: x.topk(2, dim=-1),
    lambda x: x.topk(2, largest=False),
    lambda x: x.max(dim=1),
    lambda x: x.argmax(-1),
]


@pytest.fixture
def numbers():
    """100 rows of 16, apart by less than bfloat16 can say."""
    return 1 + 1e-3 * torch.rand(100, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("choose", CHOICES)
def test_a_choice_among_equals_is_named_with_its_line(choose, numbers):
    sentence = said(choose, numbers.bfloat16())
    assert sentence is not None
    assert "of 100 rows, at test_ties.py:" in sentence
    assert sentence.startswith("On rank 1, ")
    assert "bfloat16 has too few digits" in sentence
    assert said(choose, numbers) is None
    assert said(choose, numbers.bfloat16(), inside=False) is None


def test_only_the_place_where_it_cuts_counts():
    """The first two are equal, and both are chosen; all are chosen; rows are apart."""
    row = torch.tensor([[4.0, 4.0, 2.0, 1.0]] * 3, dtype=torch.bfloat16)
    assert said(lambda x: x.topk(2), row) is None
    assert said(lambda x: x.topk(4), row) is None
    assert said(lambda x: x.topk(1), row) is not None
    assert said(lambda x: x.topk(1), row[:, 1:]) is None
    assert said(lambda x: x.topk(1, dim=0), row) is not None
