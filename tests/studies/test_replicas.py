"""The gradient that studies' replicas write by hand is autograd's of the loss that they report."""

from __future__ import annotations

import torch

from dtcourse.course.replicas import Replicas


def test_the_gradient_by_hand_is_autograds():
    model, replicas, samples = Replicas((7, 6, 5, 3)), 4, 9
    generator = torch.Generator().manual_seed(0)
    starts = [model.start(seed, torch.float64) for seed in range(replicas)]
    X = torch.stack(starts).requires_grad_()
    x = torch.randn(replicas, samples, 7, generator=generator, dtype=torch.float64)
    y = torch.randint(3, (replicas, samples), generator=generator)
    expected = model.losses(X, x, y)
    (gradient,) = torch.autograd.grad(expected.sum(), X)
    inputs = x.clone()
    found, losses = model.gradients(X.detach(), x, y)
    torch.testing.assert_close(losses, expected.detach(), rtol=1e-13, atol=0)
    torch.testing.assert_close(found, gradient, rtol=1e-12, atol=1e-15)
    assert gradient.abs().max() > 1e-2 and torch.equal(x, inputs), "the batch stays as it is"
    # One model at several places, as Training has it: a view whose rows are the same numbers.
    same, _ = model.gradients(starts[0].expand(replicas, -1), x, y)
    torch.testing.assert_close(same[0], gradient[0], rtol=1e-12, atol=1e-15)
