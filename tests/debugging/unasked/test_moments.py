"""Files within an optimizer's step, and whose number that is not finite was the first."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dtcourse.debugging.unasked.files import Writes, written_wrongly
from dtcourse.debugging.unasked.growth import LiveBytes
from dtcourse.debugging.unasked.numbers import Born, FirstNotFinite, made


class Saves(torch.optim.SGD):
    """Has its weights saved before its step, within it or after it."""

    def __init__(self, parameters, within, save):
        super().__init__(parameters, lr=0.1)
        self.within, self.save = within, save

    def step(self):
        if self.within:
            self.save()
        super().step()


def test_a_file_within_a_step_is_named(tmp_path):
    layer = nn.Linear(2, 2)

    def said(within):
        watch = Writes()
        watch.begin()
        try:
            save = lambda: torch.save(layer.state_dict(), tmp_path / "weights.pt")  # noqa: E731
            optimizer = Saves(layer.parameters(), within, save)
            layer(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            optimizer.save()
        finally:
            seen = watch.end()
        return written_wrongly([[], seen], [None, None])

    sentence = said(within=True)
    assert sentence is not None
    assert sentence.startswith(
        "On rank 1, weights.pt is written in the middle of Saves.step(), at test_moments.py:"
    )
    assert said(within=False) is None


def test_what_a_collective_brought_was_made_elsewhere():
    came = Born("c10d::allreduce_", "train.py:7", 3, 4, "nan", arrived=True)
    own = Born("div", "train.py:5", 3, 4, "nan", arrived=True)
    assert made([came, own], [None, None]).startswith("On rank 1, div made the first")
    assert made([came, None], [None, None]).startswith("On rank 0, c10d::allreduce_")
    assert made([None, None], [None, None]) is None
    assert made([own._replace(arrived=False)], [{"loss": 1.0}]) is None


def test_a_tensor_whose_memory_was_given_back_is_not_read():
    """FullyShardedDataParallel frees what it has gathered so; to read it would end the process."""
    watch = FirstNotFinite()
    watch.begin()
    try:
        gathered = torch.ones(1 << 16)
        gathered.untyped_storage().resize_(0)
        gathered.detach()
    finally:
        assert watch.end() is None


@pytest.mark.parametrize("number", [2.0, 0.0])
def test_a_sparse_tensor_is_read_by_its_values(number):
    dense = torch.tensor([[0.0, 1.0], [3.0, 0.0]])
    watch = FirstNotFinite()
    watch.begin()
    try:
        sparse = dense.to_sparse()
        (sparse / number).to_dense()
    finally:
        seen = watch.end()
    assert seen is None if number else (seen.operation, seen.wrong, seen.value) == ("div", 2, "inf")


def test_a_batch_that_grows_is_no_leak():
    """Each step makes more than the one before it, and keeps nothing."""

    def seen(keeps):
        watch, kept = LiveBytes(), []
        watch.begin()
        try:
            layer = nn.Linear(64, 8)
            optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
            for batch in (16, 32, 64, 128, 256, 512):
                x = torch.ones(batch, 64)
                loss = layer(x).square().mean()
                loss.backward()
                kept += [x] if keeps else []
                optimizer.step()
                optimizer.zero_grad()
        finally:
            growth = watch.end()
        return growth

    assert seen(keeps=False) is None
    assert "x = torch.ones(batch, 64)" in seen(keeps=True).line
