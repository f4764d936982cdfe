"""Dropout: the same masks where ranks hold the same, other ones where each holds its own part, also when recomputed."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from dtcourse import launch
from dtcourse.tensor_parallel import different_on_each_rank, same_on_all_ranks
from dtcourse.tensor_parallel.random_state import SplitDropout


def draws():
    torch.manual_seed(dist.get_rank())
    same_on_all_ranks(source=1)
    alike, split = nn.Dropout(0.5), SplitDropout(nn.Dropout(0.5))
    x = torch.ones(64)
    seen = [alike(x), split(x), alike(x), split(x)]
    with different_on_each_rank():
        seen.append(torch.rand(3))
    seen.append(torch.rand(3))
    try:
        with different_on_each_rank():
            raise KeyError
    except KeyError:
        seen.append(torch.rand(3))
    split.eval()
    assert torch.equal(split(x), x)
    seen.append(torch.rand(3))

    # Recomputed in backward: the gradient is nonzero where the forward's mask was.
    split.train()
    for use_reentrant in (True, False):
        y = torch.ones(64, requires_grad=True)
        z = checkpoint(lambda y: split(alike(y) * y), y, use_reentrant=use_reentrant)
        z.sum().backward()
        assert torch.equal(y.grad != 0, z.detach() != 0)
    return seen


def test_who_draws_the_same():
    first, second = launch(draws, 2)
    same = [torch.equal(a, b) for a, b in zip(first, second, strict=True)]
    assert same == [True, False, True, False, False, True, True, True]
    assert not torch.equal(first[1], first[3]), "and other ones each time"
    assert not torch.equal(first[0], first[2])
