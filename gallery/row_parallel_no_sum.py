"""With tensor parallelism the loss starts higher, falls, and never gets as low as without it.

Cause: the second matrix of the MLP is divided by its inputs, so each rank's product is one summand of the output. Here
it is taken for the output: the all_reduce after it is missing.
Found by: output and gradients against one process with whole matrices.
Repair: the products are summed over the ranks. Megatron-LM's pair of functions does it: one sums in the forward pass
and hands gradients on, the other hands inputs on and sums their gradients.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F

RANKS = 2
KIND = "silently wrong"
TOOL = "gradients"
NAMES = ("rank 0", "mlp")
REPAIR = [
    (
        "        return partial + self.bias\n",
        "        return SumForward.apply(partial) + self.bias\n",
    ),
]


class SumForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def whole_mlp():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.GELU(), torch.nn.Linear(16, 6))


class ParallelMLP(torch.nn.Module):
    def __init__(self, whole, rank, size):
        super().__init__()
        self.up = torch.nn.Parameter(whole[0].weight.detach().chunk(size, 0)[rank].clone())
        self.up_bias = torch.nn.Parameter(whole[0].bias.detach().chunk(size)[rank].clone())
        self.down = torch.nn.Parameter(whole[2].weight.detach().chunk(size, 1)[rank].clone())
        self.bias = torch.nn.Parameter(whole[2].bias.detach().clone())

    def forward(self, x):
        hidden = F.gelu(F.linear(x, self.up, self.up_bias))
        partial = F.linear(hidden, self.down)
        return partial + self.bias


def batch():
    torch.manual_seed(1)
    return torch.randn(8, 6), torch.randn(8, 6)


def step():
    model = ParallelMLP(whole_mlp(), dist.get_rank(), dist.get_world_size())
    x, y = batch()
    output = model(x)
    F.mse_loss(output, y).backward()
    return {"outputs": {"mlp": output.detach()}, "gradients": {"bias": model.bias.grad}}


def reference():
    model, (x, y) = whole_mlp(), batch()
    output = model(x)
    F.mse_loss(output, y).backward()
    return {"outputs": {"mlp": output.detach()}, "gradients": {"bias": model[2].bias.grad}}


if __name__ == "__main__":
    from dtcourse.debugging.gallery import main

    main(__file__)
