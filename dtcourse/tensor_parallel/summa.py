"""A linear layer on a square grid of ranks, where input, weight and output are all cut in blocks:
nobody holds a whole one.

Cutting by columns or rows leaves the activations between the regions whole on every rank. On a grid of q x q ranks,
rank (i, j) holds block (i, j) of each matrix of y = x W: rows of x and y are cut over i, columns of y and W over j.

    y_ij   = sum_k x_ik W_kj           x_ik comes along row i of the grid, W_kj along column j
    dx_ik  = sum_j dy_ij W_kj^T        W_kj comes along column j, the sum goes along row i to rank (i, k)
    dW_kj  = sum_i x_ik^T dy_ij        x_ik comes along row i, the sum goes along column j to rank (k, j)

One panel after the other: whoever owns block k of the sum broadcasts it, everybody multiplies, and it is forgotten.
Sources: SUMMA (van de Geijn and Watts, 1997); its use for training, Optimus (Xu et al. 2104.05343).

Per rank of p = q^2: 1 / p of x, W and y, and while it computes one panel of each operand. All ranks together send
(q - 1) (|x| + |W|) numbers forward and twice that backward, for a broadcast or a reduction of n to q ranks sends (q -
1) n.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh

from dtcourse.parameters.cuts import Sliced
from dtcourse.parameters.placement import Placement, place
from dtcourse.tensor_parallel import mappings
from dtcourse.tensor_parallel.shards import require_divides


class Grid:
    """The place of this rank in a square mesh of two axes: (row, column) of q x q, and the groups of both."""

    def __init__(self, mesh: DeviceMesh) -> None:
        if mesh.ndim != 2 or mesh.size(0) != mesh.size(1):
            shape = " x ".join(str(mesh.size(axis)) for axis in range(mesh.ndim))
            raise ValueError(
                f"SUMMA needs a square grid of ranks, 2 x 2 say, a mesh of two equal axes; this mesh is {shape}"
            )
        self.q = mesh.size(0)
        self.row, self.column = mesh.get_local_rank(0), mesh.get_local_rank(1)
        self.along_column, self.along_row = mesh.get_group(0), mesh.get_group(1)

    def cut(self, x: Tensor) -> Tensor:
        """This rank's block of x (rows, ..., columns): of its first dim by the grid's row,
        of its last by its column.
        """
        return mappings.scatter(mappings.scatter(x, 0, self.along_column), -1, self.along_row)

    def join(self, block: Tensor) -> Tensor:
        """The whole of which every rank has a block; the loss may be computed of it, on every rank alike."""
        return mappings.gather(mappings.gather(block, -1, self.along_row), 0, self.along_column)


class SummaLinear(nn.Module):
    """`linear` on a grid. x (rows / q, ..., in / q), this rank's block -> (rows / q, ..., out / q), likewise

    linear: the whole layer, the same on every rank; one block of its weight is kept
    mesh:   two equal axes, the grid's rows and columns; other shapes and dims that q does not divide: ValueError

    `grid.cut` and `grid.join` go from whole tensors to blocks and back, with their gradients.
    """

    def __init__(self, linear: nn.Linear, mesh: DeviceMesh) -> None:
        super().__init__()
        self.grid = grid = Grid(mesh)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        require_divides(linear.in_features, grid.q, "the inputs of a layer on a grid, by its rows")
        require_divides(
            linear.out_features, grid.q, "the outputs of a layer on a grid, by its columns"
        )
        # W's block (row, column) is the weight's (column, row): torch's nn.Linear holds W transposed.
        block = linear.weight.detach().chunk(grid.q, 0)[grid.column].chunk(grid.q, 1)[grid.row]
        self.weight = nn.Parameter(block.clone(), requires_grad=linear.weight.requires_grad)
        place(
            self.weight,
            Placement(linear.weight.shape),
            Sliced(0, linear.out_features, grid.along_row),
            Sliced(1, linear.in_features, grid.along_column),
        )
        self.bias: nn.Parameter | None = None
        if linear.bias is not None:  # the same on all ranks of a column
            mine = linear.bias.detach().chunk(grid.q)[grid.column]
            self.bias = nn.Parameter(mine.clone(), requires_grad=linear.bias.requires_grad)
            along_row = Sliced(0, linear.out_features, grid.along_row)
            place(self.bias, Placement(linear.bias.shape), along_row)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.weight.shape[1]:
            raise ValueError(
                f"x has {x.shape[-1]} columns, and a block of {self.in_features} inputs on {self.grid.q} columns of "
                f"ranks has {self.weight.shape[1]}: pass grid.cut(x)"
            )
        y = _Summa.apply(x.flatten(0, -2), self.weight, self.grid).unflatten(0, x.shape[:-1])
        # Each row of the grid adds it to its own rows of y, so its gradient is the sum over them.
        return y if self.bias is None else y + mappings.copy(self.bias, self.grid.along_column)

    def full_weight(self, block: Tensor) -> Tensor:
        """The whole (out, in), from every rank's block of the weight or of its gradient. A collective."""
        whole_columns = mappings.gather(block, 1, self.grid.along_column)
        return mappings.gather(whole_columns, 0, self.grid.along_row)

    def full_bias(self, block: Tensor) -> Tensor:
        """The whole (out,), from every rank's part of the bias or of its gradient. A collective."""
        return mappings.gather(block, 0, self.grid.along_row)


class _Summa(torch.autograd.Function):
    """x (rows, in / q), weight (out / q, in / q) -> (rows, out / q)"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, grid: Grid) -> Tensor:
        ctx.grid = grid
        ctx.save_for_backward(x, weight)
        x_panels = _Panels(x, grid.column, grid.along_row)
        w_panels = _Panels(weight, grid.row, grid.along_column)
        y = x.new_zeros(len(x), len(weight))
        for k in range(grid.q):
            y.addmm_(x_panels[k], w_panels[k].T)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), grid = ctx.saved_tensors, ctx.grid
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            panels = _Panels(weight, grid.row, grid.along_column)
            for k in range(grid.q):
                part = grad @ panels[k]
                dist.reduce(part, group=grid.along_row, group_dst=k)
                grad_x = part if k == grid.column else grad_x
            del part
        if ctx.needs_input_grad[1]:
            panels = _Panels(x, grid.column, grid.along_row)
            for k in range(grid.q):
                part = grad.T @ panels[k]
                dist.reduce(part, group=grid.along_column, group_dst=k)
                grad_weight = part if k == grid.row else grad_weight
        return grad_x, grad_weight, None


class _Panels:
    """Block k of a matrix for k = 0, 1, ...: the owner's own, and one buffer for what others send.
    All ranks ask in order.
    """

    def __init__(self, own: Tensor, mine: int, group: Any) -> None:
        self.own, self.mine, self.group = own.detach().contiguous(), mine, group
        self.buffer: Tensor | None = None

    def __getitem__(self, k: int) -> Tensor:
        if k == self.mine:
            panel = self.own
        else:
            if self.buffer is None:
                self.buffer = torch.empty_like(self.own)
            panel = self.buffer
        dist.broadcast(panel, group=self.group, group_src=k)
        return panel
