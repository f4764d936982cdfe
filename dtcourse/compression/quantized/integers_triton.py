"""Integers as three GPU kernels, written in Triton: integers.py's numbers, bit for bit,
in as few passes as there can be.

On a GPU an operation of PyTorch is one pass through main memory, and a vector that is looked at, divided, rounded and
cast makes four. Here `_largest` reads it once, `_quantize` reads it once more and writes the codes, `_dequantize` reads
codes and writes numbers. Of n numbers, in bytes: 4 n + 5 n to quantise, 5 n to dequantise, where a copy moves 8 n; so
no faster than 0.89 and 1.6 of a copy. Measured it is nowhere yet: tests/compression/test_integers_triton.py measures it
where there is a GPU.

What keeps the bits the same: a division that rounds as IEEE says (Triton's own `/` is faster and does not), and
rounding to the nearest, half to even. Rounded by chance there is no kernel: PyTorch's operations do it.

A program looks at ROWS blocks, a stretch of WIDTH numbers in each: several short blocks, or a part of a long one. Sizes
that 16 divides let it move 16 bytes at once. Triton comes with PyTorch's CUDA builds; with TRITON_INTERPRET=1 in the
environment before Python starts it runs the kernels on the CPU, for the tests.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl

    kernel = triton.jit
    # Added to a number below 2^22 and taken away again, this leaves a whole one: float32 has no bits for the rest.
    TO_WHOLE = tl.constexpr(1.5 * 2**23)
except ImportError:  # the kernels below are then plain functions that nobody calls
    triton = None

    def kernel(function: Any) -> Any:
        """Leaves the function as it is."""
        return function


SIZE = 4096  # numbers of a program


def quantize(x: Tensor, block: int, most: int) -> tuple[Tensor, Tensor]:
    """(scales, codes) of x, (n,), float32: (ceil(n / block),), float32, NaN for what is not finite; (n,), int8,
    -most to most.
    """
    n, num_blocks = len(x), -(-len(x) // block)
    codes = torch.empty(n, dtype=torch.int8, device=x.device)
    scales = torch.empty(num_blocks, device=x.device)
    if n:
        x, largest = x.contiguous(), torch.zeros(num_blocks, dtype=torch.int32, device=x.device)
        _run(_largest, x, largest, n=n, block=block)
        _run(_quantize, x, largest, scales, codes, n=n, block=block, MOST=most)
    return scales, codes


def dequantize(codes: Tensor, scales: Tensor, block: int, out: Tensor) -> Tensor:
    """codes times their blocks' scales, into out, (n,), float32, without gaps."""
    if len(codes):
        _run(_dequantize, codes, scales, out, n=len(codes), block=block)
    return out


def _run(function: Any, *tensors: Tensor, n: int, block: int, **constants: int) -> None:
    """Starts as many programs as there are tiles of ROWS blocks and WIDTH numbers, on the tensors' GPU."""
    block = min(block, n)
    width = min(SIZE, triton.next_power_of_2(block))
    rows = SIZE // width
    stretches = triton.cdiv(block, width)
    grid = (triton.cdiv(triton.cdiv(n, block), rows) * stretches,)
    x = tensors[0]
    on = torch.accelerator.device_index(x.device.index) if x.is_cuda else nullcontext()
    with on:
        function[grid](*tensors, n, block, stretches, ROWS=rows, WIDTH=width, **constants)


# --- the kernels: each call below is one program of the grid ---------------------------------------------------------


@kernel
def _largest(
    x, largest, n, block, stretches, ROWS: tl.constexpr, WIDTH: tl.constexpr
) -> None:  # fmt: skip
    """The largest magnitude of each block, as a float's bits: a long block's programs come in any order.

    Without the sign they are in order as whole numbers: infinity above all numbers, NaN above infinity.
    """
    rows, places, inside = _tile(n, block, stretches, ROWS, WIDTH)
    bits = tl.load(x + places, inside, 0.0).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    there = rows.to(tl.int64) * block < n
    tl.atomic_max(largest + rows, tl.max(bits, 1), there, sem="relaxed")


@kernel
def _quantize(
    x, largest, scales, codes, n, block, stretches,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, MOST: tl.constexpr,
) -> None:  # fmt: skip
    """Numbers in steps of their block's scale, the nearest whole one; 0 where the scale is 0 or NaN. And the scale."""
    rows, places, inside = _tile(n, block, stretches, ROWS, WIDTH)
    there = rows.to(tl.int64) * block < n
    most = tl.load(largest + rows, there, 0).to(tl.float32, bitcast=True)
    scale = tl.div_rn(most, tl.full([ROWS], MOST, tl.float32))
    scale = tl.where(most < float("inf"), scale, float("nan"))
    if tl.program_id(0) % stretches == 0:
        tl.store(scales + rows, scale, there)
    usable = (scale > 0)[:, None]
    divisor = tl.where(usable, scale[:, None], 1.0)
    number = tl.load(x + places, inside & usable, 0.0)
    steps = tl.div_rn(number, tl.broadcast_to(divisor, [ROWS, WIDTH]))
    whole = (steps + TO_WHOLE) - TO_WHOLE
    tl.store(codes + places, whole.to(tl.int8), inside)


@kernel
def _dequantize(
    codes, scales, out, n, block, stretches, ROWS: tl.constexpr, WIDTH: tl.constexpr
) -> None:  # fmt: skip
    """Codes times their block's scale."""
    rows, places, inside = _tile(n, block, stretches, ROWS, WIDTH)
    scale = tl.load(scales + rows, rows.to(tl.int64) * block < n, 0.0)[:, None]
    tl.store(out + places, tl.load(codes + places, inside, 0).to(tl.float32) * scale, inside)


@kernel
def _tile(n, block, stretches, ROWS: tl.constexpr, WIDTH: tl.constexpr) -> Any:
    """This program's blocks, (ROWS,), where its numbers are, (ROWS, WIDTH), and which of them there are."""
    program = tl.program_id(0)
    rows = program // stretches * ROWS + tl.arange(0, ROWS)
    columns = program % stretches * WIDTH + tl.arange(0, WIDTH)
    places = rows[:, None].to(tl.int64) * block + columns[None, :]
    return rows, places, (columns[None, :] < block) & (places < n)
