"""Memory-efficient attention: the plain form's numbers and PyTorch's,
at bytes that grow with the length and not its square."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from dtcourse import device
from dtcourse.memory import attention
from dtcourse.memory.attention import (
    MemoryEfficientAttention,
    memory_efficient_attention,
    plain_attention,
)
from dtcourse.models import Transformer, TransformerConfig
from dtcourse.profiling.memory import SavedTensors
from dtcourse.profiling.memory_tracker import MemoryTracker


def inputs(leading, L, S, E, V=None, dtype=torch.double, seed=0):
    make = torch.Generator().manual_seed(seed)
    shapes = (*leading, L, E), (*leading, S, E), (*leading, S, V or E)
    return tuple(
        torch.randn(s, generator=make, dtype=torch.double).to(dtype).requires_grad_()
        for s in shapes
    )


def output_and_gradients(function, q, k, v, seed=1, **options):
    """The output and its three gradients, for one random gradient of the output."""
    out = function(q, k, v, **options)
    make = torch.Generator().manual_seed(seed)
    grad_out = torch.randn(out.shape, generator=make, dtype=torch.double).to(out)
    return out.detach(), *torch.autograd.grad(out, (q, k, v), grad_out)


def sdpa(q, k, v, *, causal, scale=None):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)


def assert_same(ours, theirs, atol):
    for name, a, b in zip(("output", "q.grad", "k.grad", "v.grad"), ours, theirs, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, atol=atol, rtol=0, msg=lambda m, n=name: f"{n}: {m}")


# --- the same numbers ---------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    leading=st.sampled_from([(1,), (2,), (1, 3), (2, 2)]),
    L=st.integers(1, 40),
    S=st.integers(1, 40),
    E=st.integers(1, 9),
    V=st.integers(1, 9),
    block_q=st.integers(1, 50),
    block_k=st.integers(1, 50),
    causal=st.booleans(),
    scale=st.sampled_from([None, 0.3, 1.0, -2.0]),
)
def test_any_shape_and_any_tile_gives_the_plain_forms_output_and_gradients(
    leading, L, S, E, V, block_q, block_k, causal, scale
):
    tensors = inputs(leading, L, S, E, V)
    plain = output_and_gradients(plain_attention, *tensors, causal=causal, scale=scale)
    tiles = {"block_q": block_q, "block_k": block_k}
    tiled = output_and_gradients(
        memory_efficient_attention, *tensors, causal=causal, scale=scale, **tiles
    )
    assert_same(tiled, plain, atol=1e-11)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("L", "S"), [(130, 130), (64, 200), (200, 64)])
def test_pytorchs_own_attention_gives_the_same(L, S, causal):
    tensors = inputs((2, 3), L, S, 16)
    theirs = output_and_gradients(sdpa, *tensors, causal=causal)
    assert_same(output_and_gradients(plain_attention, *tensors, causal=causal), theirs, atol=1e-12)
    ours = output_and_gradients(memory_efficient_attention, *tensors, causal=causal)
    assert_same(ours, theirs, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_agree_with_finite_differences(causal):
    tensors = inputs((1, 2), 7, 5, 3)
    assert torch.autograd.gradcheck(
        lambda q, k, v: memory_efficient_attention(q, k, v, causal=causal, block_q=3, block_k=2),
        tensors,
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_added_up_in_float32(dtype):
    """Against float32 on the same rounded inputs: only the results are rounded, by half a unit in the last place."""
    narrow = inputs((1, 2), 300, 300, 32, dtype=dtype)
    wide = tuple(x.detach().float().requires_grad_() for x in narrow)
    ours = output_and_gradients(memory_efficient_attention, *narrow, causal=True)
    exact = output_and_gradients(plain_attention, *wide, causal=True)
    assert ours[0].dtype == dtype
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(ours[0].float(), exact[0], rtol=unit, atol=1e-5)
    # Gradients see the rounded output once more, in delta, and another rounding of grad_out;
    # the plain form in `dtype` is worse.
    plain = output_and_gradients(plain_attention, *narrow, causal=True)
    for a, b, c in zip(ours[1:], exact[1:], plain[1:], strict=True):
        error, worse = (a.float() - b).abs().max(), (c.float() - b).abs().max()
        assert error < 4 * unit * b.abs().max()
        assert error < worse


def test_under_autocast_scores_stay_in_float32():
    tensors = inputs((1,), 64, 64, 16, dtype=torch.float32)
    exact = output_and_gradients(memory_efficient_attention, *tensors)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_same(output_and_gradients(memory_efficient_attention, *tensors), exact, atol=0)


def test_scores_whose_exponentials_overflow():
    q, k, v = inputs((1,), 50, 50, 8)
    for sign in (1.0, -1.0):
        large = (q * 100).detach().requires_grad_(), (k * 100 * sign).detach().requires_grad_(), v
        assert (large[0] @ large[1].mT).exp().isinf().any()
        ours = output_and_gradients(memory_efficient_attention, *large, block_k=16)
        assert_same(ours, output_and_gradients(sdpa, *large, causal=False), atol=1e-9)


def test_inputs_that_are_views_with_other_strides():
    # batch, length, heads, dim: as a projection leaves it
    x = torch.randn(2, 20, 3, 4, dtype=torch.double)
    q, k, v = (x.transpose(1, 2).detach().requires_grad_() for _ in range(3))
    ours = output_and_gradients(memory_efficient_attention, q, k, v, causal=True, block_q=8)
    assert_same(ours, output_and_gradients(sdpa, q, k, v, causal=True), atol=1e-12)


def test_no_queries_no_output():
    q, k, v = inputs((2,), 0, 5, 4)
    out, *gradients = output_and_gradients(memory_efficient_attention, q, k, v)
    assert out.shape == (2, 0, 4)
    assert not any(g.any() for g in gradients)


def test_in_a_transformer_with_grouped_queries_every_gradient_is_the_same():
    config = TransformerConfig(
        vocab=32, d_model=24, n_layers=2, n_heads=4, n_kv_heads=2, max_length=40
    )
    tokens_BS = torch.randint(32, (2, 40), generator=torch.Generator().manual_seed(0))
    gradients = []
    for core in (None, attention.MemoryEfficientCausalAttention()):
        model = Transformer(config).double()
        for block in model.blocks:
            block.attention.core = core or block.attention.core
        model.loss(tokens_BS, tokens_BS).backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, atol=1e-12, rtol=0)


# --- memory -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_it_saves_queries_keys_values_output_and_one_number_a_query(dtype, causal):
    B, H, L, S, E, V = 2, 3, 70, 90, 16, 8
    tensors = inputs((B, H), L, S, E, V, dtype=dtype)
    size = dtype.itemsize
    expected = size * B * H * (L * E + S * E + S * V + L * V) + 4 * B * H * L
    with SavedTensors() as saved:
        out = memory_efficient_attention(*tensors, causal=causal)
    assert saved.bytes == expected
    assert len(saved.rows) == 5
    del out


def peak_bytes(function, length, **options):
    q, k, v = inputs((1,), length, length, 8, dtype=torch.float32)
    with MemoryTracker(inputs=[q, k, v]) as tracker:
        function(q, k, v, causal=True, **options).sum().backward()
    return tracker.peak.bytes


def test_peak_memory_grows_with_the_length_and_the_plain_forms_with_its_square():
    tiles = {"block_q": 32, "block_k": 32}
    ours = [peak_bytes(memory_efficient_attention, n, **tiles) for n in (128, 256, 512)]
    plain = [peak_bytes(plain_attention, n) for n in (128, 256, 512)]
    # Twice the length: the growth itself doubles where it is linear, and is four times as large where it is quadratic.
    assert (ours[2] - ours[1]) == pytest.approx(2 * (ours[1] - ours[0]), rel=0.02)
    assert (plain[2] - plain[1]) == pytest.approx(4 * (plain[1] - plain[0]), rel=0.05)
    assert plain[2] > 8 * ours[2]


def test_causal_tiles_above_the_diagonal_are_not_computed():
    """Products of tiles, counted: with n tiles a side, n (n + 1) / 2 of n^2."""
    q, k, v = inputs((1,), 64, 64, 4, dtype=torch.float32)
    counts = {}
    for causal in (False, True):
        with FlopCounterMode(display=False) as counter:
            out = memory_efficient_attention(q, k, v, causal=causal, block_q=8, block_k=8)
        forward = counter.get_total_flops()
        with FlopCounterMode(display=False) as counter:
            out.sum().backward()
        counts[causal] = forward, counter.get_total_flops()
    assert counts[False] == (4 * 64 * 64 * 4, 10 * 64 * 64 * 4)
    assert counts[True] == tuple(flops * 36 // 64 for flops in counts[False])


@pytest.mark.gpu
def test_on_a_gpu_the_numbers_are_pytorchs_and_the_peak_is_linear():
    where, peaks = device.for_rank(0), []
    for n in (512, 1024, 2048):
        tensors = [x.detach().to(where).requires_grad_() for x in inputs((1, 2), n, n, 32)]
        theirs = output_and_gradients(sdpa, *tensors, causal=True)
        before = device.memory_allocated(where)
        device.reset_peak_memory(where)
        ours = output_and_gradients(memory_efficient_attention, *tensors, causal=True)
        peaks.append(device.peak_memory(where) - before)
        assert_same(ours, theirs, atol=1e-11)
    assert peaks[2] - peaks[1] == pytest.approx(2 * (peaks[1] - peaks[0]), rel=0.05)


def test_apply_takes_the_functions_arguments_by_position_and_has_its_defaults():
    for values in ((), (True,), (False,), (True, 0.3), (True, 0.3, 2), (False, None, 2, 3)):
        q, k, v = inputs((2,), 5, 5, 4)
        names = ("causal", "scale", "block_q", "block_k")
        expected = output_and_gradients(
            memory_efficient_attention, q, k, v, **dict(zip(names, values, strict=False))
        )
        applied = output_and_gradients(
            lambda *qkv, values=values: MemoryEfficientAttention.apply(*qkv, *values), q, k, v
        )
        assert_same(applied, expected, atol=0)
    with pytest.raises(ValueError, match="same dim"):
        MemoryEfficientAttention.apply(
            torch.zeros(1, 2, 3), torch.zeros(1, 2, 4), torch.zeros(1, 2, 4)
        )


# --- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((4, 8), (4, 8), (4, 8)), r"\(batch, length, dim\).*got q \(4, 8\)"),
        (((1, 2, 4, 8), (2, 4, 8), (2, 4, 8)), r"all alike.*k \(2, 4, 8\)"),
        (((2, 4, 8), (3, 4, 8), (3, 4, 8)), r"same batch and heads; got q \(2, 4, 8\), k \(3, 4"),
        (((1, 4, 5, 8), (1, 2, 5, 8), (1, 2, 5, 8)), r"repeat_interleave.*k \(1, 2, 5, 8\)"),
        (((2, 4, 8), (2, 4, 6), (2, 4, 8)), r"same dim.*k \(2, 4, 6\)"),
        (((2, 4, 8), (2, 5, 8), (2, 4, 8)), r"its value.*v \(2, 4, 8\)"),
        (((2, 4, 8), (2, 0, 8), (2, 0, 8)), r"at least one; .*k \(2, 0, 8\)"),
    ],
)
@pytest.mark.parametrize("function", [memory_efficient_attention, plain_attention])
def test_shapes_that_do_not_fit_are_named(function, shapes, message):
    with pytest.raises(ValueError, match=message):
        function(*(torch.zeros(s) for s in shapes))


def test_other_mistakes_are_named():
    q, k, v = inputs((2,), 4, 4, 8, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"float32, torch\.bfloat16 and torch\.float32"):
        memory_efficient_attention(q, k.bfloat16(), v)
    with pytest.raises(ValueError, match=r"floating-point dtype; got torch\.int64"):
        memory_efficient_attention(q.long(), k.long(), v.long())
    with pytest.raises(ValueError, match="block_q=0"):
        memory_efficient_attention(q, k, v, block_q=0)
    with pytest.raises(ValueError, match="on one device; got cpu, meta"):
        memory_efficient_attention(q, k.to("meta"), v)
