"""What is said of the samples that ranks have read; a part of the data, or of an epoch, is nobody's mistake."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from dtcourse.debugging.unasked.reads import Reads, read_as_they_should

RANKS = 4


def said(
    samplers,
    total=50,
    loaders=1,
    epochs=1,
    workers=0,
    steps=None,
    trains=True,
    beside=(),
    model=None,
):
    """Of ranks that read one after the other, each by its sampler; and samples that are read beside it."""
    seen = []
    for rank, sampler in enumerate(samplers):
        watch, untouched = Reads(), DataLoader.__init__
        watch.begin()
        try:
            data = TensorDataset(torch.arange(total))
            for _ in range(loaders):
                loader = DataLoader(data, 4, sampler=sampler, num_workers=workers)
                with nullcontext() if trains else torch.no_grad():
                    for _ in range(epochs):
                        for step, _ in enumerate(loader, start=1):
                            _ = [data[sample] for sample in beside]
                            if step == steps:
                                break
            if model is not None:
                torch.optim.SGD([model(rank).requires_grad_()], lr=0.1).step()
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


def test_a_checkpoints_note_of_the_data_and_a_run_that_is_resumed():
    assert said(torchs(), beside=range(0, 50, 5)) is None
    assert said(torchs(), loaders=2) is None  # the second reads again what the first has read


def test_parts_of_one_model_read_the_same_and_replicas_do_not():
    everybody = [range(50)] * RANKS
    assert said(everybody, model=lambda rank: torch.full((3,), float(rank))) is None
    sentence = said(everybody, model=lambda rank: torch.ones(3))
    assert (
        sentence is not None and "50 samples (0, 1, 2, 3, 4, ...) are read by several" in sentence
    )
    again = said(everybody, epochs=2, model=lambda rank: torch.full((3,), float(rank)))
    assert again is not None and "set_epoch was not called" in again


def test_a_tensor_is_a_dataset_too():
    watch = Reads()
    watch.begin()
    try:
        assert len(list(DataLoader(torch.arange(8), 4))) == 2
    finally:
        seen = watch.end()
    assert read_as_they_should([seen, seen], [None, None]) is None
