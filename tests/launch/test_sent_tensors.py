"""How a tensor looks when it arrives, in a rank or in the notebook: as it would after pickle, at the same size."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

from dtcourse import launch
from dtcourse.launch import serialization
from tests.test_tensor_bytes import ODD


def sent(obj):
    """`obj` there and back, and the bytes that travelled."""
    stream, buffers = serialized = serialization.serialize(obj)
    arrived = pickle.loads(stream, buffers=[bytearray(buffer) for buffer in buffers])
    return arrived, serialization.size_of(serialized)


@pytest.mark.parametrize("tensor", ODD.values(), ids=list(ODD))
def test_whatever_strides_it_has(tensor):
    arrived, _ = sent(tensor)
    assert torch.equal(arrived, tensor)
    assert (arrived.dtype, arrived.shape) == (tensor.dtype, tensor.shape)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(5.0)[None][:, 2],
        torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.rand(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d),
        torch.rand(2, 1, 3, 3).to(memory_format=torch.channels_last),
        torch.rand(3, 4).t(),
        torch.rand(4, 2, 3).permute(1, 2, 0),
        torch.rand(3, 1).expand(3, 4),
        torch.rand(2, 3).t()[:, None].expand(3, 5, 2),
        torch.rand(()).expand(2, 3),
    ],
    ids=lambda tensor: f"{tuple(tensor.shape)} strides {tensor.stride()}",
)
def test_layout_is_kept_as_pickle_keeps_it(tensor):
    arrived, size = sent(tensor)
    plain = pickle.loads(pickle.dumps(tensor))
    assert torch.equal(arrived, tensor)
    assert arrived.stride() == plain.stride() == tensor.stride()
    assert size <= len(pickle.dumps(tensor))


def test_what_is_expanded_travels_once():
    for shown in (torch.zeros(1).expand(2**28), torch.zeros(()).expand(2**14, 2**14)):
        arrived, size = sent(shown)
        assert size < 1000
        assert (arrived.shape, arrived.stride()) == (shown.shape, shown.stride())


def test_what_has_gaps_travels_without_them():
    arrived, size = sent(torch.arange(2.0**20)[:: 2**10])
    assert torch.equal(arrived, torch.arange(0.0, 2.0**20, 2**10))
    assert size < 2 * 4 * 2**10


def test_what_overlaps_itself_arrives_whole():
    windows = torch.arange(6.0).unfold(0, 3, 1)
    assert torch.equal(sent(windows)[0], windows)


def convolution() -> nn.Module:
    return nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)


def test_a_model_in_channels_last_arrives_so_in_ranks_and_back():
    model = convolution()
    strides = model.weight.stride()
    assert strides != nn.Conv2d(3, 4, 3).weight.stride()

    def look(model: nn.Module) -> tuple[tuple[int, ...], nn.Module]:
        return model.weight.stride(), model

    for seen, back in launch(look, 2, model):
        assert seen == back.weight.stride() == strides
        assert back.weight.requires_grad
        assert torch.equal(back.weight, model.weight)


def test_one_element_of_a_batch_comes_back():
    def logits() -> torch.Tensor:
        return torch.arange(5.0)[None][:, 3]

    assert [x.tolist() for x in launch(logits, 2)] == [[3.0], [3.0]]
