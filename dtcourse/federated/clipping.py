"""One sample's share of a gradient, bounded: a gradient for each sample, and none of them longer than max_norm."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from dtcourse.federated import system_random
from dtcourse.federated.vectors import ModelVector


def per_sample_gradients(
    vector: ModelVector, loss: Callable[[Tensor, Tensor], Tensor], inputs: Tensor, targets: Tensor
) -> Tensor:
    """(B, N): the gradient of each of B samples, at the parameters that the model has. Memory: B N numbers.

    loss: (outputs, targets) -> plain mean over the samples; of one weighted by class, the weights would cancel
    """
    model = vector.model
    names = {p: name for name, p in model.named_parameters()}
    own = {names[p]: p.detach() for p in vector.parameters}
    if not len(inputs):
        return torch.zeros(0, vector.n, dtype=vector.dtype, device=vector.device)

    def of_one(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return loss(functional_call(model, parameters, (x.unsqueeze(0),)), y.unsqueeze(0))

    found = vmap(grad(of_one), in_dims=(None, 0, 0), randomness="different")(own, inputs, targets)
    return torch.cat([found[names[p]].flatten(1) for p in vector.parameters], dim=1)


def clipped(rows: Tensor, max_norm: float) -> Tensor:
    """(B, N): rows that are longer than max_norm are shortened to it, the others stay as they are.

    A row with NaN or an infinite number counts as zero: else it would have the sum for itself, whatever the bound.
    """
    rows = torch.where(rows.isfinite().all(dim=1, keepdim=True), rows, 0.0)
    # by the largest number first, so that no square overflows
    largest = rows.abs().amax(dim=1, keepdim=True).clamp(min=1.0)
    scaled = rows / largest
    norms = scaled.norm(dim=1, keepdim=True)
    bounds = max_norm / largest
    return torch.where(norms > bounds, scaled * (max_norm / norms), rows)


def noise_like(x: Tensor, deviation: float, draw: torch.Generator | None) -> Tensor:
    """Numbers of N(0, deviation^2), drawn on the CPU, so that a seed gives the same everywhere.

    draw: None where nobody may be able to draw them again (system_random.py)
    """
    if draw is None:
        noise = system_random.normal(x.shape)
    else:
        noise = torch.randn(x.shape, generator=draw, dtype=torch.float64)
    return (noise * deviation).to(device=x.device, dtype=x.dtype)
