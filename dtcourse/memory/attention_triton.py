"""Memory-efficient attention as three GPU kernels, written in Triton: the loops of attention.py, a tile a program.

attention.py does one tile after the other; here a GPU does hundreds at a time, and a tile never leaves the chip: scores
and probabilities live in registers and shared memory only, so the slow main memory sees q, k, v, the output and one
number a query (Dao et al., 2205.14135). Forward gives each program a block of queries; so does the backward of q, while
the backward of k and v gives each a block of keys: no two programs write to one place (Dao, 2307.08691).

Triton comes with PyTorch's CUDA builds. Elsewhere `triton_attention` says so; with TRITON_INTERPRET=1 in the
environment before Python starts, Triton runs the same kernels on the CPU, slowly, which is
how they are tested without a GPU.

Shape suffixes as in attention.py: L queries, S keys, E elements of a head.
"""

from __future__ import annotations

import math
import os
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dtcourse.memory.attention import check_inputs

try:
    import triton
    import triton.language as tl

    kernel = triton.jit
    # exp(x) = exp2(x log2(e)): the hardware has the power of two
    LOG2_E = tl.constexpr(1 / math.log(2))
except ImportError:  # the kernels below are then plain functions that nobody calls
    triton = None

    def kernel(function: Any) -> Any:
        """Leaves the function as it is."""
        return function


def unavailable(like: Tensor | None = None) -> str:
    """Why the kernels cannot run here (on the device of `like`, if given); empty where they can."""
    if triton is None:
        return "Triton is not installed (it comes with PyTorch's CUDA builds; on Linux also: pip install triton)"
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if like is None or interpreted or like.is_cuda:
        return ""
    return f"Triton compiles for GPUs and the tensors are on {like.device}: set TRITON_INTERPRET=1 before Python starts"


def triton_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None
) -> Tensor:
    """softmax(scale q k^T) v by the kernels. Arguments and result as `attention.memory_efficient_attention`'s.

    Besides its conditions: v has q's dim, at most 256; float32, float16 or bfloat16 (not bfloat16 when interpreted).
    Raises RuntimeError where the kernels cannot run, ValueError where the inputs do not fit.
    """
    scale = check_kernel_inputs(q, k, v, scale)
    shape = q.shape
    if q.dim() == 3:
        q, k, v = (x.unsqueeze(1) for x in (q, k, v))
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    return TritonAttention.apply(q, k, v, causal, scale).view(shape)


class TritonAttention(torch.autograd.Function):
    """The kernels as one differentiable operation on (batch, heads, length, dim), whose rows have no gaps.

    apply(q, k, v, causal, scale) takes the arguments of `triton_attention` by position, with the same defaults.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        causal: bool = False,
        scale: float | None = None,
    ) -> Tensor:
        scale = check_kernel_inputs(q, k, v, scale)
        if q.dim() != 4 or any(x.stride(-1) != 1 for x in (q, k, v)):
            raise ValueError(
                f"the kernels take (batch, heads, length, dim) with rows without gaps; got q {tuple(q.shape)} of "
                f"strides {q.stride()}. triton_attention takes any"
            )
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        logsumexp = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
        meta = _meta(q, k, causal, scale)
        given = q, k, v, out, logsumexp, _steps(q), _steps(k), _steps(v)
        with _at(q):
            _forward[_grid(q, meta["BLOCK_L"])](*given, **meta)
        ctx.save_for_backward(q, k, v, out, logsumexp)
        ctx.options = causal, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, logsumexp = ctx.saved_tensors
        grad_out = grad_out.contiguous()
        grad_q, grad_k, grad_v = (
            torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v)
        )
        delta = torch.empty_like(logsumexp)
        meta = _meta(q, k, *ctx.options)
        given = q, k, v, grad_out, logsumexp, delta
        strides = _steps(q), _steps(k), _steps(v)
        with _at(q):
            # and delta
            _backward_q[_grid(q, meta["BLOCK_L"])](*given, out, grad_q, *strides, **meta)
            _backward_kv[_grid(k, meta["BLOCK_S"])](*given, grad_k, grad_v, *strides, **meta)
        return grad_q, grad_k, grad_v, None, None


def check_kernel_inputs(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> float:
    """As attention.check_inputs, and what the kernels need besides; RuntimeError where they cannot run."""
    scale = check_inputs(q, k, v, scale)
    if reason := unavailable(q):
        raise RuntimeError(reason)
    if v.shape[-1] != q.shape[-1] or q.shape[-1] > 256:
        shapes = f"got {q.shape[-1]} and {v.shape[-1]}"
        raise ValueError(f"the kernels take one dim for q, k and v, at most 256; {shapes}")
    narrow = [torch.float32, torch.float16] + [torch.bfloat16] * q.is_cuda
    if q.dtype not in narrow:  # Triton's interpreter multiplies bfloat16 as integers (seen in 3.9)
        raise ValueError(f"the kernels take {', '.join(map(str, narrow))} here; got {q.dtype}")
    return scale


def _grid(x: Tensor, block: int) -> tuple[int, int]:
    """Programs: a block of rows, times batch and heads."""
    return triton.cdiv(x.shape[-2], block), x.shape[0] * x.shape[1]


def _steps(x: Tensor) -> tuple[int, int, int]:
    """Elements from one batch entry, head and row to the next; a row's own elements lie side by side."""
    batch, head, row, _ = x.stride()
    return batch, head, row


def _meta(q: Tensor, k: Tensor, causal: bool, scale: float) -> dict[str, Any]:
    """What all kernels are told: sizes, and tiles that fit the chip's shared memory."""
    width = max(16, triton.next_power_of_2(q.shape[-1]))  # tl.dot wants at least 16
    block = tile_side(width, q.dtype, _shared_memory(q))
    return {
        "heads": q.shape[1],
        "L": q.shape[-2],
        "S": k.shape[-2],
        "scale": scale,
        "E": q.shape[-1],
        "CAUSAL": causal,
        "BLOCK_L": block,
        "BLOCK_S": block,
        "BLOCK_E": width,
        "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",  # of float32 products only
        "num_warps": 4 if width <= 64 else 8,
    }


def tile_side(width: int, dtype: torch.dtype, shared_memory: int) -> int:
    """Rows of a tile: the most with which all three kernels fit into a chip's shared memory (bytes)."""
    side = min(64, 8192 // width)
    if dtype == torch.float32:
        side //= 2
    # Turing has 64 KiB, all that came later 99 KiB or more
    if shared_memory < 100_000 and width > 64:
        side //= 2
    return max(16, side)


def _shared_memory(x: Tensor) -> int:
    """Bytes that one program may use; when interpreted there is no limit."""
    if not x.is_cuda:
        return 1 << 20
    chip = triton.runtime.driver.active.utils.get_device_properties(x.device.index)
    return chip["max_shared_mem"]


def _at(x: Tensor) -> Any:
    """Kernels start on the tensors' GPU, which need not be the current one."""
    return torch.accelerator.device_index(x.device.index) if x.is_cuda else nullcontext()


# --- the kernels: each call below is one program of the grid ---------------------------------------------------------


@kernel
def _forward(
    q, k, v, out, logsumexp, q_steps, k_steps, v_steps, heads, L, S, scale,
    E: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_E: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:  # fmt: skip
    """One block of queries meets all keys that it sees."""
    rows = tl.program_id(0) * BLOCK_L + tl.arange(0, BLOCK_L)
    which = tl.program_id(1).to(tl.int64)
    q_tile = _load(_base(q, q_steps, which, heads), rows, q_steps[2], L, E, BLOCK_E)
    k = _base(k, k_steps, which, heads)
    v = _base(v, v_steps, which, heads)
    largest = tl.full([BLOCK_L], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_L], tl.float32)
    weighted = tl.zeros([BLOCK_L, BLOCK_E], tl.float32)
    last = tl.minimum(S, (tl.program_id(0) + 1) * BLOCK_L) if CAUSAL else S
    for start in range(0, last, BLOCK_S):
        columns = start + tl.arange(0, BLOCK_S)
        k_tile = _load(k, columns, k_steps[2], S, E, BLOCK_E)
        scores = _scores(q_tile, k_tile, rows, columns, S, scale, CAUSAL, PRECISION)
        now = tl.maximum(largest, tl.max(scores, 1))
        correction = tl.exp2(largest - now)
        exponentials = tl.exp2(scores - now[:, None])
        total = total * correction + tl.sum(exponentials, 1)
        v_tile = _load(v, columns, v_steps[2], S, E, BLOCK_E)
        weighted = weighted * correction[:, None]
        weighted += tl.dot(exponentials.to(v_tile.dtype), v_tile, input_precision=PRECISION)
        largest = now
    _store(out + which * L * E, weighted / total[:, None], rows, L, E, BLOCK_E)
    tl.store(logsumexp + which * L + rows, (largest + tl.log2(total)) / LOG2_E, rows < L)


@kernel
def _backward_q(
    q, k, v, grad_out, logsumexp, delta, out, grad_q, q_steps, k_steps, v_steps, heads, L, S, scale,
    E: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_E: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:  # fmt: skip
    """The gradient of one block of queries; also its rows of delta = sum(grad_out * out),
    for the kernel that follows.
    """
    rows = tl.program_id(0) * BLOCK_L + tl.arange(0, BLOCK_L)
    which = tl.program_id(1).to(tl.int64)
    q_tile = _load(_base(q, q_steps, which, heads), rows, q_steps[2], L, E, BLOCK_E)
    k = _base(k, k_steps, which, heads)
    v = _base(v, v_steps, which, heads)
    grad_tile = _load(grad_out + which * L * E, rows, E, L, E, BLOCK_E)
    out_tile = _load(out + which * L * E, rows, E, L, E, BLOCK_E)
    delta_rows = tl.sum(grad_tile.to(tl.float32) * out_tile.to(tl.float32), 1)
    tl.store(delta + which * L + rows, delta_rows, rows < L)
    logsumexp_rows = tl.load(logsumexp + which * L + rows, rows < L, float("inf"))
    total = tl.zeros([BLOCK_L, BLOCK_E], tl.float32)
    last = tl.minimum(S, (tl.program_id(0) + 1) * BLOCK_L) if CAUSAL else S
    for start in range(0, last, BLOCK_S):
        columns = start + tl.arange(0, BLOCK_S)
        k_tile = _load(k, columns, k_steps[2], S, E, BLOCK_E)
        v_tile = _load(v, columns, v_steps[2], S, E, BLOCK_E)
        scores = _scores(q_tile, k_tile, rows, columns, S, scale, CAUSAL, PRECISION)
        p = tl.exp2(scores - logsumexp_rows[:, None] * LOG2_E)
        grad_p = tl.dot(grad_tile, tl.trans(v_tile), input_precision=PRECISION)
        grad_scores = (p * (grad_p - delta_rows[:, None])).to(k_tile.dtype)
        total += tl.dot(grad_scores, k_tile, input_precision=PRECISION)
    _store(grad_q + which * L * E, total * scale, rows, L, E, BLOCK_E)


@kernel
def _backward_kv(
    q, k, v, grad_out, logsumexp, delta, grad_k, grad_v, q_steps, k_steps, v_steps, heads, L, S, scale,
    E: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_E: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:  # fmt: skip
    """The gradients of one block of keys and values: what all queries that see them say."""
    columns = tl.program_id(0) * BLOCK_S + tl.arange(0, BLOCK_S)
    which = tl.program_id(1).to(tl.int64)
    q = _base(q, q_steps, which, heads)
    k_tile = _load(_base(k, k_steps, which, heads), columns, k_steps[2], S, E, BLOCK_E)
    v_tile = _load(_base(v, v_steps, which, heads), columns, v_steps[2], S, E, BLOCK_E)
    total_k = tl.zeros([BLOCK_S, BLOCK_E], tl.float32)
    total_v = tl.zeros([BLOCK_S, BLOCK_E], tl.float32)
    first = tl.program_id(0) * BLOCK_S // BLOCK_L * BLOCK_L if CAUSAL else 0
    for start in range(first, L, BLOCK_L):
        rows = start + tl.arange(0, BLOCK_L)
        q_tile = _load(q, rows, q_steps[2], L, E, BLOCK_E)
        grad_tile = _load(grad_out + which * L * E, rows, E, L, E, BLOCK_E)
        # Rows past the end: exp2(score - infinity) = 0.
        logsumexp_rows = tl.load(logsumexp + which * L + rows, rows < L, float("inf"))
        delta_rows = tl.load(delta + which * L + rows, rows < L, 0.0)
        scores = _scores(q_tile, k_tile, rows, columns, S, scale, CAUSAL, PRECISION)
        p = tl.exp2(scores - logsumexp_rows[:, None] * LOG2_E)
        total_v += tl.dot(tl.trans(p.to(q_tile.dtype)), grad_tile, input_precision=PRECISION)
        grad_p = tl.dot(grad_tile, tl.trans(v_tile), input_precision=PRECISION)
        grad_scores = (p * (grad_p - delta_rows[:, None])).to(q_tile.dtype)
        total_k += tl.dot(tl.trans(grad_scores), q_tile, input_precision=PRECISION)
    _store(grad_k + which * S * E, total_k * scale, columns, S, E, BLOCK_E)
    _store(grad_v + which * S * E, total_v, columns, S, E, BLOCK_E)


# --- what the kernels share ------------------------------------------------------------------------------------------


@kernel
def _scores(
    q_tile, k_tile, rows, columns, S, scale, CAUSAL: tl.constexpr, PRECISION: tl.constexpr
) -> Any:
    """One tile of scale q k^T, in powers of two; -infinity where a query must not look."""
    scores = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION) * (scale * LOG2_E)
    seen = columns[None, :] < S
    if CAUSAL:
        seen = seen & (columns[None, :] <= rows[:, None])
    return tl.where(seen, scores, float("-inf"))


@kernel
def _base(x, steps, which, heads) -> Any:
    """Where batch entry and head number `which` begins."""
    return x + which // heads * steps[0] + which % heads * steps[1]


@kernel
def _load(x, rows, step, length, E: tl.constexpr, BLOCK_E: tl.constexpr) -> Any:
    """Rows of a matrix; zero past its end, in both directions."""
    e = tl.arange(0, BLOCK_E)
    inside = (rows[:, None] < length) & (e[None, :] < E)
    return tl.load(x + rows[:, None].to(tl.int64) * step + e[None, :], mask=inside, other=0.0)


@kernel
def _store(x, tile, rows, length, E: tl.constexpr, BLOCK_E: tl.constexpr) -> None:
    """Rows of a matrix without gaps, in its own dtype; nothing past its end."""
    e = tl.arange(0, BLOCK_E)
    inside = (rows[:, None] < length) & (e[None, :] < E)
    place = x + rows[:, None].to(tl.int64) * E + e[None, :]
    tl.store(place, tile.to(x.dtype.element_ty), mask=inside)
