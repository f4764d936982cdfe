"""What exercise 11b-1 asks where blocks are off: by how much those of small and of large numbers are."""

from __future__ import annotations

import pytest
import torch

from dtcourse.course.checks.lesson_11b_one_bit import one_bit_mean as exercise

SIZES = torch.logspace(-2, 1, 16)[torch.arange(16) * 7 % 16]


@pytest.mark.parametrize("largest", [0.05, 0.12])
def test_one_scale_for_several_blocks_is_told_by_what_small_numbers_suffer(largest):
    """Whether the block of the largest numbers stays below the limit is a matter of the draw."""
    off = largest * 10 / SIZES
    assert "scale in common" in exercise._hint(off, SIZES, summed=False)


def test_what_all_blocks_suffer_alike_is_no_matter_of_scales():
    torch.manual_seed(0)
    off = 0.4 * (0.8 + 0.4 * torch.rand(16))
    assert "who keeps it" in exercise._hint(off, SIZES, summed=False)


def test_the_last_block_alone_is_the_shorter_one():
    off = torch.full((16,), 0.05)
    off[-1] = 1.0
    assert "last block" in exercise._hint(off, SIZES, summed=False)
