"""One product for many groups of rows: rows of group e times matrix e, all in one operation of autograd.

    y_RF = grouped_mm(x_RD, w_EDF, counts_E)          F.grouped_mm(x_RD, w_EDF, offs=counts_E.cumsum(0).int())

What a mixture of experts computes: groups are as long as the tokens that chose each expert, none too. Written as a loop
of products that autograd records one by one, every group's gradient of w is a tensor as large as the whole of w, zero
but for one matrix, and E of those are added. Here each product, forward and backward, is written where it belongs in
the result: nothing is padded to a common length, copied or added. 2 R D F operations, and twice that backward. (Grouped
products for experts: MegaBlocks, Gale et al. 2211.15841.)

PyTorch's F.grouped_mm does it, where it can: in float32 or 16 bits (on a GPU bfloat16), for rows of whole 16 bytes. It
takes the counts from the device, so that the host need not wait for them. Counts that can be read without waiting are,
and then groups of equal length are one batched product. Both are autograd's own, which is quicker than a Function in
Python where experts are small. For what F.grouped_mm does not take, double precision above all, there is a loop.

Shape suffixes: R rows in the order of the groups, E groups, D in, F out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dtcourse import streams, torch_private

torch_private.count_grouped_mm()


def grouped_mm(x_RD: Tensor, w_EDF: Tensor, counts_E: Tensor) -> Tensor:
    """(R, F): the first counts_E[0] rows of x times w_EDF[0], the next counts_E[1] times w_EDF[1], ...

    Gradients may be differentiated again. Raises ValueError where counts do not add up to R; where a GPU has them,
    RuntimeError later.
    """
    if len(counts_E) != len(w_EDF):
        raise ValueError(f"there are {len(counts_E)} groups of rows, and {len(w_EDF)} matrices")
    if torch.is_autocast_enabled(x_RD.device.type) and x_RD.dtype != torch.double:
        x_RD, w_EDF = (t.to(torch.get_autocast_dtype(t.device.type)) for t in (x_RD, w_EDF))
    kernel = _is_for_kernel(x_RD, w_EDF.shape[2])
    if kernel and not streams.may_look(counts_E):
        fits = counts_E.sum() == len(x_RD)
        torch_private.assert_later(fits, f"groups do not add up to {len(x_RD)} rows")
        return _by_kernel(x_RD, w_EDF, counts_E)
    counts = counts_E.tolist()
    if sum(counts) != len(x_RD):
        raise ValueError(
            f"{len(counts)} groups of {sum(counts)} rows together, and there are {len(x_RD)} rows"
        )
    if len(set(counts)) == 1:
        return torch.bmm(x_RD.unflatten(0, (len(counts), counts[0])), w_EDF).flatten(0, 1)
    if kernel:
        return _by_kernel(x_RD, w_EDF, counts_E)
    return _RowsTimesMatrices.apply(x_RD, w_EDF, counts)


# --- around the kernel ----------------------------------------------------------------------------------------------


def _is_for_kernel(x_RD: Tensor, width: int) -> bool:
    """Whether F.grouped_mm takes rows like x's and rows of `width` numbers."""
    sixteen = (torch.bfloat16, torch.float16)
    dtypes = (torch.float32, *sixteen) if x_RD.device.type == "cpu" else (torch.bfloat16,)
    whole = all(n * x_RD.element_size() % 16 == 0 for n in (x_RD.shape[1], width))
    return x_RD.dtype in dtypes and whole and x_RD.numel() > 0


def _by_kernel(x_RD: Tensor, w_EDF: Tensor, counts_E: Tensor) -> Tensor:
    """F.grouped_mm, whose gradients may come in any layout."""
    ends_E = counts_E.to(x_RD.device).cumsum(0, dtype=torch.int32)
    y_RF = F.grouped_mm(x_RD.contiguous(), w_EDF, offs=ends_E)
    if y_RF.requires_grad:
        # The kernel raises where what comes in is not laid out row by row, as the gradient of a plain sum is not.
        y_RF.register_hook(Tensor.contiguous)
        assert y_RF.grad_fn is not None
        y_RF.grad_fn.register_hook(_gradients_of_gradients_too)
    return y_RF


def _gradients_of_gradients_too(
    grads: tuple[Tensor | None, ...], _: Any
) -> tuple[Tensor | None, ...] | None:
    """The kernel's backward has run: where it is to be differentiated again, what comes in then is laid out as well."""
    if not torch.is_grad_enabled():
        return None
    return tuple(None if g is None else _RowByRow.apply(g) for g in grads)


class _RowByRow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.contiguous()


# --- the loop -------------------------------------------------------------------------------------------------------


def rows_times_matrices(x_RD: Tensor, w_EDF: Tensor, counts: list[int]) -> Tensor:
    """(R, F), as grouped_mm, without autograd."""
    y_RF = x_RD.new_empty(len(x_RD), w_EDF.shape[2])
    for x, w, y in zip(x_RD.split(counts), w_EDF.unbind(), y_RF.split(counts), strict=True):
        torch.mm(x, w, out=y)
    return y_RF


def matrix_of_each_group(x_RD: Tensor, y_RF: Tensor, counts: list[int]) -> Tensor:
    """(E, D, F): of each group, its rows of x transposed times its rows of y; zero where it has none.
    Without autograd.
    """
    w_EDF = x_RD.new_empty(len(counts), x_RD.shape[1], y_RF.shape[1])
    for x, y, w in zip(x_RD.split(counts), y_RF.split(counts), w_EDF.unbind(), strict=True):
        torch.mm(x.T, y, out=w)
    return w_EDF


class _RowsTimesMatrices(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_RD: Tensor, w_EDF: Tensor, counts: list[int]) -> Tensor:
        ctx.save_for_backward(x_RD, w_EDF)
        ctx.counts = counts
        return rows_times_matrices(x_RD.detach(), w_EDF.detach(), counts)

    @staticmethod
    def backward(ctx: Any, grad_RF: Tensor) -> tuple[Tensor | None, ...]:
        x_RD, w_EDF = ctx.saved_tensors
        rows, matrices = _products()
        grad_x = rows(grad_RF, w_EDF.mT, ctx.counts) if ctx.needs_input_grad[0] else None
        grad_w = matrices(x_RD, grad_RF, ctx.counts) if ctx.needs_input_grad[1] else None
        return grad_x, grad_w, None


class _MatrixOfEachGroup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_RD: Tensor, y_RF: Tensor, counts: list[int]) -> Tensor:
        ctx.save_for_backward(x_RD, y_RF)
        ctx.counts = counts
        return matrix_of_each_group(x_RD.detach(), y_RF.detach(), counts)

    @staticmethod
    def backward(ctx: Any, grad_EDF: Tensor) -> tuple[Tensor | None, ...]:
        x_RD, y_RF = ctx.saved_tensors
        rows, _ = _products()
        grad_x = rows(y_RF, grad_EDF.mT, ctx.counts) if ctx.needs_input_grad[0] else None
        grad_y = rows(x_RD, grad_EDF, ctx.counts) if ctx.needs_input_grad[1] else None
        return grad_x, grad_y, None


def _products() -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """What backward multiplies with. Through autograd only where it is to be differentiated again."""
    if torch.is_grad_enabled():
        return _RowsTimesMatrices.apply, _MatrixOfEachGroup.apply
    return rows_times_matrices, matrix_of_each_group
