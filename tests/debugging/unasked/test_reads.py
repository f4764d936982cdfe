"""What is said of the samples that ranks have read; a part of the data, or of an epoch, is nobody's mistake."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from dtcourse.debugging.unasked.reads import Reads, read_as_they_should

RANKS = 4


def said(samplers, total=50, epochs=1, workers=0, steps=None, trains=True):
    """Of ranks that read one after the other, each by its sampler."""
    seen = []
    for sampler in samplers:
        watch, untouched = Reads(), DataLoader.__init__
        watch.begin()
        try:
            loader = DataLoader(
                TensorDataset(torch.arange(total)), 4, sampler=sampler, num_workers=workers
            )
            with nullcontext() if trains else torch.no_grad():
                for _ in range(epochs):
                    for step, _ in enumerate(loader, start=1):
                        if step == steps:
                            break
        finally:
            seen.append(watch.end())
        assert DataLoader.__init__ is untouched
    return read_as_they_should(seen, [None] * len(seen))


def torchs(total=50, **options):
    return [DistributedSampler(range(total), RANKS, rank, **options) for rank in range(RANKS)]


def test_an_evaluation_that_counts_samples_twice_is_told_and_a_training_is_padded_by_torch_itself():
    sentence = said(torchs(shuffle=False), trains=False)
    assert sentence is not None and "2 samples (0, 1) are read by several ranks" in sentence
    assert said(torchs(shuffle=False)) is None


@pytest.mark.parametrize("trains", [True, False])
def test_samplers_that_were_not_told_their_rank(trains):
    everybody = [range(0, 50, RANKS)] * RANKS
    sentence = said(everybody, trains=trains)
    assert sentence is not None
    assert "13 samples (0, 4, 8, 12, 16, ...) are read by several ranks" in sentence
    assert "37 samples (1, 2, 3, 5, 6, ...) are read by nobody" in sentence


def test_an_epoch_in_the_last_ones_order():
    sentence = said(torchs(), epochs=2)
    assert sentence is not None and "set_epoch was not called" in sentence


def test_a_part_of_the_data_or_of_an_epoch_and_what_workers_read():
    parts = [range(rank, 20, RANKS) for rank in range(RANKS)]
    assert said(parts) is None
    assert said(torchs(drop_last=True, shuffle=False), trains=False) is None
    assert said(torchs(), steps=2) is None
    assert said(torchs(shuffle=False), workers=1, trains=False) is None
