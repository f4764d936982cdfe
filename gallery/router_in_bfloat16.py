"""In bfloat16 a mixture of experts sends tokens to other experts than its weights do in float32; loads drift apart.

Cause: the router's logits have eight bits of mantissa, so many tokens have two experts with the same one; who wins
is the order of the experts, not the weights.
Found by: a choice of the largest among 16-bit numbers, of which several are equal where it cuts.
Repair: the router alone in float32 (Fedus et al. 2022 call it selective precision). Known from every
model.to(torch.bfloat16) with a router in it.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
KIND = "silently wrong"
TOOL = "ties"
NAMES = ("topk", "bfloat16", "weights, chosen = ")
REPAIR = [
    (
        "logits = self.router(x)",
        "logits = nn.functional.linear(x.float(), self.router.weight.float())",
    )
]


class Experts(nn.Module):
    def __init__(self, width=32, num_experts=16):
        super().__init__()
        self.router = nn.Linear(width, num_experts, bias=False)
        nn.init.normal_(self.router.weight, std=0.02)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(num_experts))

    def forward(self, x):
        logits = self.router(x)
        weights, chosen = logits.softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = (chosen == number).nonzero(as_tuple=True)
            share = weights[token, place].unsqueeze(1).to(x.dtype)
            out = out.index_add(0, token, share * expert(x[token]))
        return x + out


def step():
    torch.manual_seed(0)
    model = DistributedDataParallel(Experts().to(torch.bfloat16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(1 + dist.get_rank())
    x = torch.randn(256, 32, generator=data, dtype=torch.bfloat16)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = (model(x) - x.roll(1, dims=1)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"own losses": losses}


if __name__ == "__main__":
    from dtcourse.debugging.gallery import main

    main(__file__)
