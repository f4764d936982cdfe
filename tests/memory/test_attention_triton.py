"""The Triton kernels: run by Triton's interpreter and compiled for GPUs that are not here; on a GPU where there is one.

Triton is not in the lock: PyTorch's CUDA builds bring their own. `make triton` puts it into a folder of its own, for
the fresh processes that the first two tests start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from dtcourse import device
from dtcourse.memory import attention_triton
from dtcourse.memory.attention import plain_attention
from dtcourse.memory.attention_triton import triton_attention
from tests.turns import takes_turns

ROOT = Path(__file__).resolve().parents[2]
APART = ROOT / "build" / "triton"  # where `make triton` puts it

needs_triton = pytest.mark.needs("triton")


def in_a_fresh_process(what: str, **environment: str):
    """What this file prints as JSON when it is run with `what`, with Triton to import."""
    places = os.pathsep.join([str(ROOT), str(APART)])
    done = subprocess.run(
        [sys.executable, __file__, what],
        env=os.environ | {"PYTHONPATH": places} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def output_and_gradients(function, tensors, **options):
    q, k, v = (x.detach().requires_grad_() for x in tensors)
    out = function(q, k, v, **options)
    grad_out = torch.cos(torch.arange(out.numel(), device=out.device)).view(out.shape)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), grad_out.to(out.dtype))]


CASES = [  # leading dims, queries, keys, dim, dtype, causal
    ((2,), 37, 37, 8, torch.float32, False),
    ((2,), 37, 37, 8, torch.float32, True),
    ((1, 2), 50, 77, 20, torch.float32, True),
    ((1, 2), 77, 50, 20, torch.float32, True),
    ((1, 2), 50, 77, 32, torch.float32, False),
    ((1, 2), 130, 70, 16, torch.float16, True),
    ((1, 1), 64, 128, 64, torch.float16, False),
]


def _interpreted(cases):
    """The largest error of output and gradients in each case, against the plain form in float32."""
    errors = []
    for leading, L, S, E, dtype, causal in cases:
        torch.manual_seed(0)
        tensors = [torch.randn(*leading, n, E).to(dtype) for n in (L, S, S)]
        ours = output_and_gradients(triton_attention, tensors, causal=causal, scale=0.3)
        right = output_and_gradients(
            plain_attention, [x.float() for x in tensors], causal=causal, scale=0.3
        )
        errors.append(
            [(a.float() - b).abs().max().item() for a, b in zip(ours, right, strict=True)]
        )
    # batch, length, heads, dim: rows of a head do not follow each other
    views = torch.randn(2, 20, 3, 4)
    ours, right = (
        output_and_gradients(f, [views.transpose(1, 2)] * 3, causal=True)
        for f in (triton_attention, plain_attention)
    )
    errors.append([(a - b).abs().max().item() for a, b in zip(ours, right, strict=True)])

    saved = {}
    hooks = torch.autograd.graph.saved_tensors_hooks(
        lambda x: saved.setdefault(x.data_ptr(), x) if x.numel() else x, lambda x: x
    )
    with hooks:
        triton_attention(*(torch.randn(1, 2, 24, 8, requires_grad=True) for _ in range(3)))
    refused = ""
    try:
        triton_attention(*(torch.zeros(1, 4, 8, dtype=torch.bfloat16) for _ in range(3)))
    except ValueError as error:
        refused = str(error)
    four = [torch.randn(1, 2, 20, 8) for _ in range(3)]
    for given, options in (
        ((), {}),
        ((True,), {"causal": True}),
        ((True, 0.5), {"causal": True, "scale": 0.5}),
    ):
        applied = output_and_gradients(
            lambda *qkv, given=given: attention_triton.TritonAttention.apply(*qkv, *given), four
        )
        same = output_and_gradients(triton_attention, four, **options)
        assert all(torch.equal(a, b) for a, b in zip(applied, same, strict=True)), given
    return errors, sum(x.nbytes for x in saved.values()), refused


@needs_triton
def test_triton_interpreter_gives_the_plain_forms_output_and_gradients():
    # Triton reads the variable once, when it is imported.
    errors, saved, refused = in_a_fresh_process("interpret", TRITON_INTERPRET="1")
    assert len(errors) == len(CASES) + 1
    for case, worst in zip([*CASES, ("views", torch.float32)], errors, strict=True):
        assert max(worst) < (5e-3 if torch.float16 in case else 5e-6), (case, worst)
    assert saved == 2 * (4 * 24 * 8 * 4 + 24 * 4)  # q, k, v, output; one float32 a query
    assert "bfloat16" in refused


COMPILED = [  # kernel, chip, its shared memory, dtype, dim
    ("_forward", 90, 232_448, torch.bfloat16, 64),
    ("_backward_q", 90, 232_448, torch.bfloat16, 64),
    ("_backward_kv", 90, 232_448, torch.bfloat16, 64),
    ("_backward_q", 86, 101_376, torch.float32, 256),  # the tightest of their chips
    ("_backward_kv", 75, 65_536, torch.float16, 128),
]


@needs_triton
@pytest.mark.slow
@takes_turns("dtcourse/memory/attention_triton")
def test_kernels_compile_for_gpus_within_their_shared_memory(tmp_path):
    """Triton's compiler needs no GPU. Turing, Ampere (the smaller one) and Hopper."""
    used = in_a_fresh_process("compile", TRITON_CACHE_DIR=str(tmp_path))
    for case, bytes_used in zip(COMPILED, used, strict=True):
        assert 0 < bytes_used <= case[2], case


def compiled_shared_memory(name, capability, shared, dtype, width) -> int:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as compiled

    function = getattr(attention_triton, name)
    side = attention_triton.tile_side(width, dtype, shared)
    constants = {"E": width, "CAUSAL": True, "BLOCK_L": side, "BLOCK_S": side, "BLOCK_E": width}
    constants["PRECISION"] = "ieee" if dtype == torch.float32 else "tf32"
    pointer = {torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32"}[dtype]
    types = {"heads": "i32", "L": "i32", "S": "i32", "scale": "fp32"}
    types |= {"logsumexp": "*fp32", "delta": "*fp32"} | dict.fromkeys(constants, "constexpr")
    types |= dict.fromkeys(["q_steps", "k_steps", "v_steps"], ("i32", "i32", "i32"))
    names = function.arg_names
    source = ASTSource(
        function,
        {argument: types.get(argument, pointer) for argument in names},
        constexprs={(names.index(c),): value for c, value in constants.items()},
    )
    options = {"num_warps": 4 if width <= 64 else 8}
    return compiled(
        source, target=GPUTarget("cuda", capability, 32), options=options
    ).metadata.shared


def test_where_it_cannot_run_it_says_what_is_missing(monkeypatch):
    x = torch.zeros(1, 4, 8)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with monkeypatch.context() as patch:
        patch.setattr(attention_triton, "triton", None)
        with pytest.raises(RuntimeError, match="pip install triton"):
            triton_attention(x, x, x)
    monkeypatch.setattr(attention_triton, "triton", object())
    with pytest.raises(RuntimeError, match="on cpu: set TRITON_INTERPRET=1"):
        triton_attention(x, x, x)
    with pytest.raises(ValueError, match="each key has its value"):
        triton_attention(x, x, x[:, :2])
    with pytest.raises(RuntimeError, match="on cpu"):
        attention_triton.TritonAttention.apply(x, x, x, True)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(ValueError, match="triton_attention takes any"):
        attention_triton.TritonAttention.apply(x, x, x, True)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("L", "S", "E"), [(512, 512, 64), (300, 700, 128), (700, 300, 40)])
def test_on_a_gpu_it_gives_pytorchs_numbers(L, S, E, dtype, causal):
    where = device.for_rank(0)
    torch.manual_seed(0)
    tensors = [torch.randn(2, 3, n, E, device=where, dtype=dtype) for n in (L, S, S)]
    ours = output_and_gradients(triton_attention, tensors, causal=causal)
    theirs = output_and_gradients(F.scaled_dot_product_attention, tensors, is_causal=causal)
    exact = output_and_gradients(plain_attention, [x.double() for x in tensors], causal=causal)
    for a, b, right in zip(ours, theirs, exact, strict=True):
        error, allowed = ((x.double() - right).abs().max() for x in (a, b))
        assert error <= 2 * allowed + 1e-4 * right.abs().max()


@pytest.mark.gpu
def test_on_a_gpu_its_peak_memory_grows_with_the_length():
    where = device.for_rank(0)
    peaks = []
    for n in (1024, 2048, 4096):
        tensors = [torch.randn(1, 4, n, 64, device=where, dtype=torch.float16) for _ in range(3)]
        output_and_gradients(triton_attention, tensors, causal=True)  # compiles
        before = device.memory_allocated(where)
        device.reset_peak_memory(where)
        output_and_gradients(triton_attention, tensors, causal=True)
        peaks.append(device.peak_memory(where) - before)
    assert peaks[2] - peaks[1] == pytest.approx(2 * (peaks[1] - peaks[0]), rel=0.05)


if __name__ == "__main__":
    if sys.argv[1] == "interpret":
        print(json.dumps(_interpreted(CASES)))
    else:
        print(json.dumps([compiled_shared_memory(*case) for case in COMPILED]))
