"""Steps of an expert-parallel layer, drawn anew: outputs and gradients as ranks hold them, with one mistake or none."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

Diagnosis = tuple[str, int | None]
Found = dict[str, Tensor]
KINDS = ("healthy", "experts summed", "gate local", "no way back", "mixed rows", "local expert")
K, DIM = 2, 3


def run_of(kind: str, turn: int, draw: Random) -> tuple[tuple[Any, ...], Diagnosis]:
    """(x, gate, experts, k, found) of a step, and its diagnosis.

    turn: 0, 1, 2; on 2, 3 and 4 ranks
    """
    p = turn + 2
    each, tokens = draw.randint(2, 3), draw.randint(4, 6)
    make = torch.Generator().manual_seed(draw.randrange(2**31))
    shapes = (p, tokens, DIM), (p * each, DIM), (p * each, DIM, DIM)
    x, gate, experts = (torch.randn(s, generator=make, dtype=torch.double) for s in shapes)
    which = draw.randrange(p) if kind == "mixed rows" else None
    found = _step(x, gate, experts, no_way_back=kind == "no way back", mixed=which)
    alone = [_step(x, gate, experts, only=r) for r in range(p)]
    if kind == "experts summed":
        found["experts"] *= p
    elif kind == "gate local":
        # The mean over a rank's own tokens.
        found["gate"] = torch.stack([p * one["gate"][0] for one in alone])
    elif kind == "local expert":
        own = torch.stack([alone[e // each]["experts"][e] for e in range(p * each)])
        which = int((found["experts"] - own).flatten(1).norm(dim=1).argmax())
        found["experts"][which] = own[which]
    rounded = {name: t.float().double() for name, t in found.items()}
    return (x, gate, experts, K, rounded), (kind, which)


def _step(
    x: Tensor,
    gate: Tensor,
    experts: Tensor,
    *,
    no_way_back: bool = False,
    mixed: int | None = None,
    only: int | None = None,
) -> Found:
    """Outputs, and gradients of the mean over all tokens of each output's squares.

    no_way_back: rows that went to another rank's expert bring no gradient back to their tokens
    mixed: a rank that takes the rows that come back for other tokens'
    only: the part of the gradients that comes from one rank's tokens
    """
    p, tokens, _ = x.shape
    x, gate, experts = (t.clone().requires_grad_() for t in (x, gate, experts))
    outputs = []
    for rank in range(p):
        top = (x[rank] @ gate.T).softmax(-1).topk(K)
        weights = top.values / top.values.sum(-1, keepdim=True)
        away = (top.indices // (len(experts) // p) != rank).unsqueeze(-1)
        rows = x[rank].unsqueeze(1).expand(-1, K, -1)
        if no_way_back:
            rows = torch.where(away, rows.detach(), rows)
        back = torch.einsum("nkd,nkdf->nkf", rows, experts[top.indices])
        if mixed == rank:
            back = back.flatten(0, 1).roll(1, 0).view_as(back)
        outputs.append((weights.unsqueeze(-1) * back).sum(1))
    y = torch.stack(outputs)
    losses = y.square().sum(-1) / (p * tokens)
    loss = (losses if only is None else losses[only]).sum()
    of_x, of_gate, of_experts = torch.autograd.grad(loss, (x, gate, experts))
    gates = of_gate.expand(p, -1, -1).clone()
    return {"y": y.detach(), "x": of_x, "gate": gates, "experts": of_experts}
