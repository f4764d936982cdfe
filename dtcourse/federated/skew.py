"""Data that is not spread evenly: clients with few labels each, and clients with few samples.

    sizes = quantity_skew(len(labels), num_clients=200, alpha=1.0, seed=0)      # how many samples each client has
    parts = label_skew(labels, sizes, alpha=0.1, seed=0)                       # which ones: a tensor of indices each

Both skews are Dirichlet's, with one number each: alpha near 0 gives a client a label or two (or one client nearly all
samples), a large alpha gives all clients the same, and math.inf exactly so. They are drawn apart, so an experiment can
change one and keep the other: even_sizes(n, clients) has no skew of quantity, alpha=math.inf none of labels.

Source: Hsu, Qi and Brown (arXiv 1909.06335) for labels: each client draws its own shares of the labels, and then its
samples by these, without replacement. Their alpha is C times ours, C the number of classes: ours is that of Yurochkin
et al. (arXiv 1905.12022) where the classes are even. What is left for the last clients is no longer theirs to choose,
so the order of the clients is drawn too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def even_sizes(num_samples: int, num_clients: int) -> list[int]:
    """As many samples for each client; the first ones have one more where the clients do not divide them."""
    _check(num_samples, num_clients)
    each, rest = divmod(num_samples, num_clients)
    return [each + (client < rest) for client in range(num_clients)]


def quantity_skew(num_samples: int, num_clients: int, alpha: float, seed: int) -> list[int]:
    """How many samples each client has: shares ~ Dirichlet(alpha), rounded so that the sum is num_samples.

    A small alpha leaves some clients without any sample, as in life.
    """
    _check(num_samples, num_clients, alpha)
    if math.isinf(alpha):
        return even_sizes(num_samples, num_clients)
    shares = np.random.default_rng(seed).dirichlet(np.full(num_clients, alpha)) * num_samples
    sizes = np.floor(shares).astype(int)
    # the largest remainders are rounded up
    for client in np.argsort(sizes - shares, kind="stable")[: num_samples - sizes.sum()]:
        sizes[client] += 1
    return sizes.tolist()


def label_skew(labels: Tensor, sizes: Sequence[int], alpha: float, seed: int) -> list[Tensor]:
    """The indices of each client's samples, sorted; no sample is at two clients.

    labels: (n,) of int64
    sizes:  how many samples each client gets; their sum is at most n
    alpha:  of the shares of the labels at a client ~ Dirichlet(alpha C p), where p are the shares in the C classes
        of all samples
    """
    _check(len(labels), len(sizes), alpha)
    if sum(sizes) > len(labels) or min(sizes) < 0:
        raise ValueError(
            f"the sizes are of 0 or more samples, {len(labels)} in all at most; they are from {min(sizes)} to "
            f"{max(sizes)} with a sum of {sum(sizes)}"
        )
    draw = np.random.default_rng([seed, 1])
    shuffled = draw.permutation(len(labels))
    if math.isinf(alpha):
        ends = np.cumsum(sizes)
        return [_sorted(shuffled[end - size : end]) for end, size in zip(ends, sizes, strict=True)]
    own = labels.cpu().numpy()[shuffled]
    classes = np.unique(own)
    # the samples of a class that nobody has yet, the next one last
    pools = [list(shuffled[own == c]) for c in classes]
    prior = np.array([len(pool) for pool in pools]) / len(own)
    parts: list[Tensor] = [torch.empty(0, dtype=torch.int64)] * len(sizes)
    for client in draw.permutation(len(sizes)):
        shares = draw.dirichlet(alpha * len(classes) * prior)
        mine = []
        for _ in range(sizes[client]):
            left = np.array([len(pool) for pool in pools])
            wanted = np.where(left > 0, shares, 0.0)
            if not wanted.sum() > 0:  # all that it wants is gone
                wanted = left.astype(float)
            mine.append(pools[draw.choice(len(classes), p=wanted / wanted.sum())].pop())
        parts[client] = _sorted(mine)
    return parts


def _sorted(indices: Sequence[int] | np.ndarray) -> Tensor:
    return torch.tensor(np.sort(np.asarray(indices, dtype=np.int64)))


def _check(num_samples: int, num_clients: int, alpha: float = 1.0) -> None:
    if num_clients < 1 or num_samples < 0:
        raise ValueError(
            f"there is at least one client, and no sample or more; got {num_clients} clients and {num_samples} samples"
        )
    if not alpha > 0:
        raise ValueError(f"alpha is above 0 (math.inf: no skew); got {alpha}")
