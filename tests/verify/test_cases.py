"""The small models are what they are called: tied, frozen, unused; and a seed says all of them."""

from __future__ import annotations

import pytest
import torch

from dtcourse.verify import CASES, gradients_of


def backward(case, samples=12):
    model = case.build(3)
    x, y = case.batch(samples, 5)
    case.loss(model(x), y).backward()
    return model


@pytest.mark.parametrize("name", CASES)
def test_a_seed_says_the_model_and_the_batch_and_leaves_the_random_state_alone(name):
    case = CASES[name]
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    one, same, other = (case.build(seed).state_dict() for seed in (3, 3, 4))
    batch, again, next_step = (case.batch(12, seed) for seed in (5, 5, 6))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not all(torch.equal(one[key], other[key]) for key in one)
    assert all(torch.equal(a, b) for a, b in zip(batch, again, strict=True))
    assert not torch.equal(batch[0], next_step[0])
    assert len(batch[0]) == len(batch[1]) == 12


@pytest.mark.parametrize("name", CASES)
def test_the_loss_is_a_mean_over_samples(name):
    """So the mean of two halves' gradients is the whole batch's: what data parallelism stands on."""
    case = CASES[name]
    model = case.build(0)
    x, y = case.batch(12, 1)
    halves = [case.loss(model(a), b) for a, b in zip(x.chunk(2), y.chunk(2), strict=True)]
    torch.testing.assert_close(case.loss(model(x), y), sum(halves) / 2)


def test_a_tied_parameter_is_one_with_gradients_of_both_uses():
    model = backward(CASES["tied"])
    assert model.head.weight is model.embed.weight
    assert [name for name in gradients_of(model) if "weight" in name] == [
        "embed.weight",
        "mix.weight",
    ]
    apart = CASES["tied"].build(3)
    apart.head.weight = torch.nn.Parameter(apart.embed.weight.detach().clone())
    x, y = CASES["tied"].batch(12, 5)
    CASES["tied"].loss(apart(x), y).backward()
    torch.testing.assert_close(
        model.embed.weight.grad, apart.embed.weight.grad + apart.head.weight.grad
    )


def test_what_is_frozen_or_unused_gets_no_gradient_and_all_else_does():
    without = {
        name: {n for n, g in gradients_of(backward(case)).items() if g is None}
        for name, case in CASES.items()
    }
    assert without == {
        "mlp": set(),
        "tied": set(),
        "frozen": {"2.weight", "0.bias"},
        "unused": {"forgotten.weight", "forgotten.bias"},
    }
    assert {name for name, case in CASES.items() if case.has_unused} == {"unused"}
    frozen = {n for n, p in CASES["frozen"].build(0).named_parameters() if not p.requires_grad}
    assert frozen == without["frozen"]
