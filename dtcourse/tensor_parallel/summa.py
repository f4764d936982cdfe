"""A linear layer on a square grid of ranks, where input, weight and output are all cut in blocks:
nobody holds a whole one.

Cutting by columns or rows leaves the activations between the regions whole on every rank. On a grid of q x q ranks,
rank (i, j) holds block (i, j) of each matrix of y = x W: rows of x and y are cut over i, columns of y and W over j.

    y_ij   = sum_k x_ik W_kj           x_ik comes along row i of the grid, W_kj along column j
    dx_ik  = sum_j dy_ij W_kj^T        W_kj comes along column j, the sum goes along row i to rank (i, k)
    dW_kj  = sum_i x_ik^T dy_ij        x_ik comes along row i, the sum goes along column j to rank (k, j)

One panel after the other: whoever owns block k of the sum broadcasts it, everybody multiplies, and it is forgotten.
The next panel is on its way while one is multiplied, and a block's sum while the next part is computed.
Sources: SUMMA (van de Geijn and Watts, 1997); its use for training, Optimus (Xu et al. 2104.05343).

Per rank of p = q^2: 1 / p of x, W and y, and while it computes two panels of each operand at most. All ranks together
send (q - 1) (|x| + |W|) numbers forward and twice that backward, for a broadcast or a reduction of n to q ranks sends
(q - 1) n.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh

from dtcourse.parameters.cuts import Sliced
from dtcourse.parameters.deep_copies import KnowsGroups
from dtcourse.parameters.placement import Placement, place
from dtcourse.tensor_parallel import mappings
from dtcourse.tensor_parallel.shards import require_divides


class Grid(KnowsGroups):
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

    def panels_of_row(self, block: Tensor) -> Iterator[Tensor]:
        """The blocks of this rank's row of the grid, one after the other."""
        return panels(block, self.column, self.along_row)

    def panels_of_column(self, block: Tensor) -> Iterator[Tensor]:
        """The blocks of this rank's column of the grid, one after the other."""
        return panels(block, self.row, self.along_column)

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
        y = x.new_zeros(len(x), len(weight))
        pairs = zip(grid.panels_of_row(x), grid.panels_of_column(weight), strict=True)
        for x_panel, w_panel in pairs:
            y.addmm_(x_panel, w_panel.T)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), grid = ctx.saved_tensors, ctx.grid
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            parts = (grad @ panel for panel in grid.panels_of_column(weight))
            grad_x = summed(parts, grid.column, grid.along_row)
        if ctx.needs_input_grad[1]:
            parts = (grad.T @ panel for panel in grid.panels_of_row(x))
            grad_weight = summed(parts, grid.row, grid.along_column)
        return grad_x, grad_weight, None


def panels(own: Tensor, mine: int, group: Any) -> Iterator[Tensor]:
    """Block k of a matrix for k = 0, 1, ..., of which this rank has block `mine`. The next is on its way meanwhile.

    Every rank of the group takes all of them, in order.
    """
    own, count = own.detach().contiguous(), dist.get_world_size(group)

    def start(k: int) -> tuple[Tensor, Any]:
        panel = own if k == mine else torch.empty_like(own)
        return panel, dist.broadcast(panel, group=group, group_src=k, async_op=True)

    coming: tuple[Tensor, Any] | None = start(0)
    for k in range(count):
        assert coming is not None
        panel, work = coming
        coming = None
        work.wait()
        if k + 1 < count:
            coming = start(k + 1)
        yield panel
        del panel


def summed(parts: Iterable[Tensor], mine: int, group: Any) -> Tensor:
    """Part k is a rank's share of block k: the sum of block `mine`. It is under way while the next part is made."""
    total, before = None, None
    for k, part in enumerate(parts):
        if before is not None:
            before.wait()
        before = dist.reduce(part, group=group, group_dst=k, async_op=True)
        total = part if k == mine else total
    assert before is not None, "one part for each rank at least"
    assert total is not None, "and this rank's among them"
    before.wait()
    return total
