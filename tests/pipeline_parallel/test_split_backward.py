"""Both halves of a backward against the whole: the same gradients, the same FLOPs, each at its time."""

from __future__ import annotations

import copy
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from dtcourse.pipeline_parallel.split_backward import DelayedWeightGradients


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 10),
        nn.Tanh(),
        nn.LayerNorm(10),
        nn.Linear(10, 10, bias=False),
        nn.Linear(10, 3),
    )


def block() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.middle = nn.Linear(6, 6)
        self.middle.weight.requires_grad_(False)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.middle(self.embed(tokens)))


class Derived(nn.Module):
    """Weight and bias that are computed: nothing to delay there, and nothing to lose."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(4, 6)), nn.Parameter(torch.randn(4))
        self.plain = nn.Linear(4, 4)

    def forward(self, x):
        y = nn.functional.linear(x, self.weight * 2, self.bias)
        return nn.functional.linear(y, self.plain.weight, self.bias * 3)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


def tensors(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.double, requires_grad=True)


CASES = {
    "mlp": (mlp, lambda: tensors(5, 6)),
    "sequence": (mlp, lambda: tensors(2, 4, 6)),
    "one sample without a batch": (mlp, lambda: tensors(6)),
    "transformer block": (block, lambda: tensors(2, 5, 8)),
    "tied and frozen": (Tied, lambda: torch.randint(11, (3, 4))),
    "derived": (Derived, lambda: tensors(5, 6)),
    "checkpointed": (Checkpointed, lambda: tensors(5, 6)),
}


def backward(
    model: nn.Module, x: torch.Tensor, seed: int, later: DelayedWeightGradients | None
) -> None:
    if later is None:
        y = model(x)
        dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(seed), dtype=y.dtype)
        torch.autograd.backward(y, dy)
        return
    with later:
        y = model(x)
        dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(seed), dtype=y.dtype)
        torch.autograd.backward(y, dy)


@pytest.mark.parametrize("case", CASES)
def test_both_halves_are_the_whole(case):
    make, inputs = CASES[case]
    torch.manual_seed(0)
    whole = make().double()
    halves = copy.deepcopy(whole)
    for seed in range(2):  # two micro-batches, whose gradients add up
        x = inputs()
        twin = x.detach().clone().requires_grad_(x.requires_grad)
        later = DelayedWeightGradients()
        with FlopCounterMode(display=False) as at_once:
            backward(whole, x, seed, None)
        with FlopCounterMode(display=False) as in_halves:
            backward(halves, twin, seed, later)
            later.compute()
        assert in_halves.get_total_flops() == at_once.get_total_flops() > 0
        if x.requires_grad:
            torch.testing.assert_close(twin.grad, x.grad, rtol=1e-12, atol=1e-12)
    for (name, mine), theirs in zip(halves.named_parameters(), whole.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None), name
        if mine.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-12, atol=1e-12)


def test_weights_have_no_gradient_before_their_half_and_hooks_are_called_in_it():
    model, x = mlp(), torch.randn(5, 6, requires_grad=True)
    later, called = DelayedWeightGradients(), []
    model[0].weight.register_post_accumulate_grad_hook(called.append)
    with later:
        y = model(x)
    y.sum().backward()
    assert x.grad is not None
    assert [p.grad is None for p in model.parameters()] == [
        True,
        True,
        False,
        False,
        True,
        True,
        True,
    ]
    assert not called
    later.compute()
    assert all(p.grad is not None for p in model.parameters())
    assert len(called) == 1
    later.compute()  # nothing is left, nothing is added
    assert len(called) == 1


def test_what_the_second_half_needs_is_kept_until_then_and_nothing_else():
    model, x = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)), torch.randn(5, 6)
    seen: dict[str, weakref.ref] = {}
    model[0].register_forward_hook(lambda *a: seen.update(before_tanh=weakref.ref(a[2])))
    model[1].register_forward_hook(lambda *a: seen.update(after_tanh=weakref.ref(a[2])))
    later = DelayedWeightGradients()
    with later:
        loss = model(x).sum()
    loss.backward()
    del loss
    assert seen["before_tanh"]() is None
    assert len(later.waiting) == 2
    later.compute()
    assert seen["after_tanh"]() is None
    assert not later.waiting


def test_under_autocast():
    torch.manual_seed(0)
    whole = nn.Linear(8, 8)
    halves = copy.deepcopy(whole)
    x, twin = (torch.ones(4, 8).requires_grad_() for _ in range(2))
    later = DelayedWeightGradients()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        whole(x).sum().backward()
        with later:
            y = halves(twin)
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    later.compute()
    assert (twin.grad.dtype, halves.weight.grad.dtype) == (torch.float32, torch.float32)
    torch.testing.assert_close(twin.grad, x.grad, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(halves.weight.grad, whole.weight.grad, rtol=1e-2, atol=1e-2)


def test_outside_of_training_nothing_is_taken_over():
    model, later = mlp(), DelayedWeightGradients()
    with later, torch.no_grad():
        y = model(torch.randn(2, 6))
    assert not y.requires_grad and not later.waiting
