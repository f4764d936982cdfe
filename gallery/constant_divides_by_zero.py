"""With gradients of 8 bits the loss is nan from the second step on; with 32 bits it trains.

Cause: the quantiser divides by the span of a tensor's numbers, and the bias of a layer that has made nothing but
zeros has a gradient of zeros only: 0 / 0. The all-reduce carries it to all ranks.
Found by: the first operation whose result is not finite though what it was given is, with its line and rank.
Repair: no span, no division: a floor under it. Known from snippets of QSGD and of min-max quantisation; a paper's
tensors are never constant.
"""

import torch
import torch.distributed as dist
from torch import nn

RANKS = 2
KIND = "diverges"
TOOL = "numbers"
NAMES = ("rank 1", "div", "levels = ")
REPAIR = [("span = high - low", "span = (high - low).clamp_min(1e-12)")]


class Branches(nn.Module):
    """Two towers, and which of them a sample needs: of a rank's batch, sometimes only one."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.head = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 2)

    def forward(self, x, goes_left):
        to_left, to_right = goes_left.unsqueeze(1).float(), (~goes_left).unsqueeze(1).float()
        hidden = to_left * self.left(x) + to_right * self.right(x)
        return self.head(torch.relu(hidden))


def through_8_bits(gradient):
    low, high = gradient.min(), gradient.max()
    span = high - low
    levels = ((gradient - low) / span * 255).round()
    return low + levels / 255 * span


def step():
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Branches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(1 + rank)
    losses = []
    for _ in range(4):
        x, y = torch.randn(16, 8, generator=data), torch.randint(2, (16,), generator=data)
        goes_left = x[:, 0] > 0 if rank == 0 else torch.ones(16, dtype=torch.bool)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x, goes_left), y)
        loss.backward()
        for p in model.parameters():
            p.grad = through_8_bits(p.grad)
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()
        losses.append(loss.item())
    return {"own losses": losses}


if __name__ == "__main__":
    from dtcourse.debugging.gallery import main

    main(__file__)
