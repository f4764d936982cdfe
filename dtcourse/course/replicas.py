"""Many replicas of one MLP in one process, each with parameters and a batch of its own: for studies of many ranks.

Parameters are flat vectors, in the order of `model.parameters()`; a stack of R of them is a tensor X_RN, and a layer of
all replicas is one batched product. So a study writes a method as its paper does, as arithmetic on X_RN and the
gradients G_RN, and a test proves it equal to real ranks.

    R  replicas      N  numbers of a model      B  samples of a replica's batch      F  features      C  classes
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector

from dtcourse import data
from dtcourse.models import MLP


class Replicas:
    """An MLP of these sizes (ReLU between its layers, none at the end) at many places at once."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sizes)
        self._numbers = [n for i, o in pairwise(self.sizes) for n in (o * i, o)]

    def start(self, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """(N,): the parameters of MLP(sizes, seed=seed)."""
        return parameters_to_vector(MLP(self.sizes, seed=seed).parameters()).detach().to(dtype)

    def losses(self, X_RN: torch.Tensor, x_RBF: torch.Tensor, y_RB: torch.Tensor) -> torch.Tensor:
        """(R,): each replica's mean cross-entropy on its own batch."""
        parts, h = X_RN.split(self._numbers, dim=1), x_RBF
        for layer, (n_in, n_out) in enumerate(pairwise(self.sizes)):
            weights, bias = parts[2 * layer].view(-1, n_out, n_in), parts[2 * layer + 1]
            h = torch.baddbmm(bias.unsqueeze(1), h, weights.mT)
            if layer < len(self.sizes) - 2:
                h = h.relu()
        each = F.cross_entropy(h.flatten(0, 1), y_RB.flatten(), reduction="none")
        return each.view(y_RB.shape).mean(1)

    @torch.no_grad()
    def gradients(
        self, X_RN: torch.Tensor, x_RBF: torch.Tensor, y_RB: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(R, N), (R,): each replica's own gradient, and the loss that it is of.

        Backpropagation by hand, since studies spend their time here: twice as fast as autograd on so small layers.
        """
        parts, shapes = X_RN.split(self._numbers, dim=1), list(pairwise(self.sizes))
        weights = [parts[2 * layer].view(-1, o, i) for layer, (i, o) in enumerate(shapes)]
        inputs, h = [], x_RBF
        for layer, W in enumerate(weights):
            inputs.append(h)
            h = torch.baddbmm(parts[2 * layer + 1].unsqueeze(1), h, W.mT)
            if layer < len(weights) - 1:
                h = h.relu_()
        log_p, own = h.log_softmax(2), y_RB.unsqueeze(2)
        losses = -log_p.gather(2, own).squeeze(2).mean(1)
        # d: of the loss by a layer's outputs. By the last one's: probabilities less one-hot labels.
        d = log_p.exp_()
        d.scatter_add_(2, own, d.new_full(own.shape, -1.0)).div_(y_RB.shape[1])
        found = torch.empty(X_RN.shape, dtype=X_RN.dtype)
        places = found.split(self._numbers, dim=1)
        for layer in reversed(range(len(weights))):
            places[2 * layer].copy_((d.mT @ inputs[layer]).flatten(1))
            places[2 * layer + 1].copy_(d.sum(1))
            if layer:
                d = (d @ weights[layer]).masked_fill_(inputs[layer] == 0, 0)
        return found, losses

    @torch.no_grad()
    def losses_on(self, X_RN: torch.Tensor, x_BF: torch.Tensor, y_B: torch.Tensor) -> torch.Tensor:
        """(R,): every replica's loss on the same samples."""
        size = len(X_RN)
        return self.losses(X_RN, x_BF.expand(size, *x_BF.shape), y_B.expand(size, *y_B.shape))


@dataclass(frozen=True)
class Digits:
    """Handwritten digits, some to train on, the rest of the training split held out: flat images (samples, 64)."""

    x: torch.Tensor
    y: torch.Tensor
    x_rest: torch.Tensor
    y_rest: torch.Tensor

    @classmethod
    def drawn(cls, samples: int, seed: int, dtype: torch.dtype = torch.float32) -> Digits:
        """So many to train on, which ones by the seed."""
        pool = data.digits("train")
        order = torch.randperm(len(pool.labels), generator=torch.Generator().manual_seed(seed))
        own, rest = order[:samples], order[samples:]
        images = pool.images.flatten(1).to(dtype)
        return cls(images[own], pool.labels[own], images[rest], pool.labels[rest])

    def pools(self, ranks: int, by_class: bool) -> torch.Tensor:
        """(ranks, n): the samples that each rank draws from. by_class: sorted by their digit first,
        so each has a digit or two.

        Samples that would make some ranks' parts longer are left out.
        """
        everyone = torch.arange(len(self.y))
        if by_class:
            everyone = torch.argsort(self.y, stable=True)
        each = len(self.y) // ranks
        return everyone[: each * ranks].view(ranks, each)

    def batches(self, pools: torch.Tensor, batch: int, seed: int) -> Iterator[torch.Tensor]:
        """Without end: (ranks, batch), the samples of each rank's next step, drawn with replacement from its pool."""
        generator = torch.Generator().manual_seed(seed)
        ranks, each = pools.shape
        while True:
            yield pools.gather(1, torch.randint(each, (ranks, batch), generator=generator))
