"""Overflow is named where it begins, in forward and in backward."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dtcourse.memory import raise_on_overflow


class Block(nn.Module):
    """Squares between its two layers, outside any module."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.down(self.up(x) ** 2)


def half(model):
    torch.manual_seed(0)
    for p in model.parameters():
        torch.nn.init.constant_(p, 0.5)
    return model.half()


def test_the_module_that_overflows_is_named():
    model = half(
        nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.ReLU())
    )
    with raise_on_overflow(model):
        model(torch.ones(2, 4).half())
        with pytest.raises(OverflowError) as caught:
            model(torch.full((2, 4), 20000.0).half())
    assert str(caught.value).startswith(
        "1.0 (Linear) puts out 8 infinities among 8 values in float16, which ends at 6.55e+04; its inputs are finite, "
        "up to 4e+04. Let it run in float32 or bfloat16"
    )
    model(torch.full((2, 4), 20000.0).half())  # afterwards nobody looks


def test_the_same_in_bfloat16_is_fine():
    model = half(Block()).bfloat16()
    with raise_on_overflow(model):
        assert model(torch.full((2, 4), 20000.0).bfloat16()).isfinite().all()


def test_between_modules():
    with raise_on_overflow(model := half(Block())):
        with pytest.raises(OverflowError, match=r"input of down is not finite already.*its parent"):
            model(torch.full((2, 4), 200.0).half())


def test_parameters_that_are_infinite_already():
    model = half(Block())
    model.up.bias.data[0] = torch.inf
    with (
        raise_on_overflow(model),
        pytest.raises(OverflowError, match=r"up .*own parameters are not finite"),
    ):
        model(torch.ones(2, 4).half())


def test_in_backward_of_a_loss_scaled_too_far():
    model = half(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)))
    with raise_on_overflow(model):
        loss = model(torch.ones(2, 4).half() * 0.1).sum()
        (loss * 8192.0).backward(retain_graph=True)
        with pytest.raises(OverflowError) as caught:
            (loss * 60000.0).backward(retain_graph=True)
    assert str(caught.value).startswith(
        "the gradient that reaches the output of 1 is 8 infinities among 8 values in float16"
    )
    (loss * 60000.0).backward()  # afterwards nobody looks


def test_nan_and_outputs_in_containers():
    class Two(nn.Module):
        def forward(self, x):
            return {"fine": x, "log": [x.log(), "text"], "count": torch.ones(2, dtype=torch.long)}

    class Object(nn.Module):
        def forward(self, x):
            return SimpleNamespace(log=x.log())

    with raise_on_overflow(model := Object()):
        with pytest.raises(OverflowError, match="1 infinities"):
            model(torch.tensor([0.0, 1.0]))
    with raise_on_overflow(model := Two()):
        model(torch.ones(3))
        with pytest.raises(OverflowError, match="1 infinities and 1 NaN among 3 values in float32"):
            model(torch.tensor([0.0, -1.0, 1.0]))
