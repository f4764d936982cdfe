"""Mixtures and batches for the tests, the same on every rank, and one process's numbers for them."""

from __future__ import annotations

import torch
from torch import nn

from dtcourse.models import BiasBalancedGate, ExpertChoiceGate, Experts, MoE, TopKGate
from dtcourse.verify import gradients_of

D, E = 6, 8
GATES = {
    "top 2": lambda: TopKGate(D, E, 2),
    "switch": lambda: TopKGate(D, E, 1),
    "by bias": lambda: BiasBalancedGate(D, E, 3),
    "expert choice": lambda: ExpertChoiceGate(D, E, 1.5),
}


def mixture(gate="top 2", kind="gelu", bias=True, shared=False, d_ff=5, **options):
    torch.manual_seed(0)
    beside = nn.Linear(D, D) if shared else None
    moe = MoE(GATES[gate](), Experts(E, D, d_ff, kind=kind, bias=bias), beside, **options).double()
    for parameter in moe.parameters():
        nn.init.normal_(parameter)
    return moe


def tokens(lengths, seed=1):
    """Each part's own, of so many tokens."""
    make = torch.Generator().manual_seed(seed)
    return torch.randn(sum(lengths), D, generator=make, dtype=torch.double).split(lengths)


def loss_of(moe, x, share):
    """share: what one token's term is multiplied with."""
    return (moe(x) ** 3).sum() * share + moe.auxiliary_loss


def alone(moe, parts):
    """One process on the whole batch: the mean over tokens, gradients of everything, of x too."""
    x = torch.cat(parts).requires_grad_()
    loss = loss_of(moe, x, 1 / len(x))
    loss.backward()
    return gradients_of(moe) | {"x": x.grad, "loss": loss.detach()}
