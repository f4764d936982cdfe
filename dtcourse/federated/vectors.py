"""A model as one vector: what a server holds, a client changes, and messages are made of."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ModelVector:
    """A model's trainable parameters, one after another in one vector x of N numbers.

    Raises ValueError where the model has no such parameter, parameters of several dtypes, or floating-point buffers:
    running statistics are made of a client's samples, and nobody here averages, clips or masks them.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        dtypes = {p.dtype for p in self.parameters}
        if len(dtypes) != 1:
            raise ValueError(
                f"the model's trainable parameters are to be of one dtype; they are of {sorted(map(str, dtypes))}"
                if dtypes
                else "the model has no parameter that requires a gradient: there is nothing to train"
            )
        if statistics := [name for name, b in model.named_buffers() if b.is_floating_point()]:
            raise ValueError(
                f"the model has running statistics ({', '.join(statistics[:3])}), which each client would keep for "
                "itself: take a norm without them, such as GroupNorm"
            )
        self.n = sum(p.numel() for p in self.parameters)
        self.dtype, self.device = self.parameters[0].dtype, self.parameters[0].device

    @property
    def nbytes(self) -> int:
        """Of x, as it travels."""
        return self.n * self.dtype.itemsize

    def read(self) -> Tensor:
        """x (N,), in memory of its own."""
        return torch.cat([p.detach().flatten() for p in self.parameters])

    @torch.no_grad()
    def write(self, x: Tensor) -> None:
        """Gives the parameters x's numbers."""
        for p, part in zip(self.parameters, self.parts(x), strict=True):
            p.copy_(part)

    def parts(self, x: Tensor) -> list[Tensor]:
        """x, cut into tensors of the parameters' shapes."""
        pieces = x.split([p.numel() for p in self.parameters])
        return [piece.view_as(p) for piece, p in zip(pieces, self.parameters, strict=True)]

    def gradient(self, loss: Tensor) -> Tensor:
        """(N,): of a loss of the model as it is; zero where a parameter was not used."""
        found = torch.autograd.grad(loss, self.parameters, materialize_grads=True)
        return torch.cat([g.flatten() for g in found])
