"""An Adam written by hand takes too large steps at first and too small ones later; no setting of torch's helps it.

Cause: the step is read out of the state into a variable of its own, and that is counted up; a number is no tensor,
so the state keeps its 0, and the bias correction is that of the first step for ever.
Found by: the optimizer's state, which is looked at over the steps: its counter does not move.
Repair: count in the state. Known from snippets of optimizers that came with papers, and from functions that get the
step as an argument and count it up inside.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
KIND = "silently wrong"
TOOL = "optimizers"
NAMES = ("step of 0.weight", "Adam")
REPAIR = [("step += 1", 'step = state["step"] = step + 1')]


class Adam(torch.optim.Optimizer):
    def __init__(self, parameters, lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["m"], state["v"] = torch.zeros_like(p), torch.zeros_like(p)
                step, m, v = state["step"], state["m"], state["v"]
                step += 1
                m.mul_(beta1).add_(p.grad, alpha=1 - beta1)
                v.mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                m_hat = m / (1 - beta1**step)
                v_hat = v / (1 - beta2**step)
                p.sub_(group["lr"] * m_hat / (v_hat.sqrt() + group["eps"]))


def step():
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    model = DistributedDataParallel(net)
    optimizer = Adam(net.parameters(), lr=1e-2)
    data = torch.Generator().manual_seed(1 + rank)
    x, y = torch.randn(64, 16, generator=data), torch.randint(4, (64,), generator=data)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"own losses": losses}


if __name__ == "__main__":
    from dtcourse.debugging.gallery import main

    main(__file__)
