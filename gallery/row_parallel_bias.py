"""On 2 ranks a small error, on 4 a larger one: the layer's outputs are shifted by the same vector for all tokens.

Cause: each rank adds the whole bias to its part of a row-parallel product, and then the parts are summed: the bias is
in the output as many times as there are ranks. Where biases begin at zero no first step shows it.
Found by: the layer's output against one process with the whole matrix.
Repair: the bias is added once, after the sum.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F

RANKS = 4
KIND = "silently wrong"
TOOL = "gradients"
NAMES = ("rank 0", "proj", "Each row is off by the same vector")
REPAIR = [
    ("self.weight, self.bias)\n", "self.weight)\n"),
    ("        return total\n", "        return total + self.bias\n"),
]


class RowParallelLinear(torch.nn.Module):
    """Takes the part of the input that this rank has."""

    def __init__(self, whole, rank, size):
        super().__init__()
        self.weight = torch.nn.Parameter(whole.weight.detach().chunk(size, 1)[rank].clone())
        self.bias = torch.nn.Parameter(whole.bias.detach().clone())

    def forward(self, x):
        total = F.linear(x, self.weight, self.bias)
        dist.all_reduce(total)
        return total


def whole_layer():
    torch.manual_seed(0)
    return torch.nn.Linear(16, 6)


def tokens():
    torch.manual_seed(1)
    return torch.randn(8, 16)


def step():
    rank, size = dist.get_rank(), dist.get_world_size()
    layer = RowParallelLinear(whole_layer(), rank, size)
    with torch.no_grad():
        return {"outputs": {"proj": layer(tokens().chunk(size, 1)[rank])}}


def reference():
    with torch.no_grad():
        return {"outputs": {"proj": whole_layer()(tokens())}}


if __name__ == "__main__":
    from dtcourse.debugging.gallery import main

    main(__file__)
