"""Integers' Triton kernels: run by Triton's interpreter and compiled for GPUs that are not here;
on a GPU where there is one.

Triton is not in the lock: PyTorch's CUDA builds bring their own. `make triton` puts it into a folder of its own, for
the fresh processes that the first two tests start.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from dtcourse import device
from dtcourse.compression import IntegerQuantizer
from dtcourse.compression.quantized import integers, integers_triton
from tests.turns import takes_turns

ROOT = Path(__file__).resolve().parents[2]
APART = ROOT / "build" / "triton"  # where `make triton` puts it

needs_triton = pytest.mark.needs("triton")

CASES = [  # numbers, to a block, bits
    (0, 64, 8),
    (1, 64, 8),
    (1000, 1, 8),
    (1000, 3, 8),
    (5000, 64, 8),
    (70_001, 1000, 8),
    (70_001, 65_536, 8),
    (70_001, 1 << 40, 8),
    (70_001, 5000, 4),
    (70_001, 100, 2),
]


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


def vector(n: int, block: int) -> torch.Tensor:
    """Of blocks of different scales; one of zeros, one with an infinity and one with a NaN where there are as many."""
    x = torch.randn(n, generator=torch.Generator().manual_seed(n))
    x *= torch.linspace(0.1, 10, n)
    if n > 8 * block:
        x[block : 2 * block] = 0
        x[3 * block] = torch.inf
        x[5 * block] = -torch.nan
    if n > 100:
        x[-5:] = torch.tensor([0.5, 1.5, 2.5, -3.5, 127]) * x.abs().nan_to_num(0, 0).max() / 127
    return x


def what_differs(n: int, block: int, bits: int, where: torch.device) -> list[str]:
    """Of the CPU's operations and the kernels on `where`, bit by bit; codes where the scale is a number."""
    quantizer, x = IntegerQuantizer(bits, block=block), vector(n, block)
    payload = quantizer.compress(x)
    scales, packed = payload.wire
    codes = integers.unpack(packed, bits, n)
    found, theirs = integers_triton.quantize(x.to(where), block, quantizer.most)
    fine = scales.isfinite().repeat_interleave(min(block, max(n, 1)))[:n]
    again = integers_triton.dequantize(
        theirs, found, block, torch.full((n,), 9.0, device=where)
    ).cpu()
    same = {
        "scales": torch.equal(scales.nan_to_num(-1), found.cpu().nan_to_num(-1)),
        "codes": torch.equal(codes[fine], theirs.cpu()[fine]),
        "numbers": torch.equal(quantizer.decompress(payload)[fine], again[fine]),
        "what is not finite": bool(again[~fine].isnan().all()),
    }
    return [what for what, holds in same.items() if not holds]


@needs_triton
def test_triton_interpreter_gives_the_same_bits_as_the_cpu():
    # Triton reads the variable once, when it is imported.
    assert in_a_fresh_process("interpret", TRITON_INTERPRET="1") == [[]] * len(CASES)


KERNELS = [("_largest", 90), ("_quantize", 75), ("_quantize", 90), ("_dequantize", 90)]


@needs_triton
@pytest.mark.slow
@takes_turns("dtcourse/compression/")
def test_kernels_compile_for_gpus_and_divide_as_ieee_says(tmp_path):
    """Triton's compiler needs no GPU. Turing and Hopper."""
    for (name, _), code in zip(
        KERNELS, in_a_fresh_process("compile", TRITON_CACHE_DIR=str(tmp_path)), strict=True
    ):
        assert ("div.rn.f32" in code) == (name == "_quantize")
        assert "div.full.f32" not in code
        assert "fma" not in code  # a product and a sum in one rounding would be other bits


def compiled(name: str, capability: int) -> str:
    """A kernel's machine code, as PTX."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as compile_

    function = getattr(integers_triton, name)
    types = {"x": "*fp32", "out": "*fp32", "scales": "*fp32", "largest": "*i32", "codes": "*i8"}
    types |= {"n": "i32", "block": "i32", "stretches": "i32"}
    constants = {"ROWS": 1, "WIDTH": integers_triton.SIZE}
    constants |= {"MOST": 127} if name == "_quantize" else {}
    types |= dict.fromkeys(constants, "constexpr")
    names = function.arg_names
    source = ASTSource(
        function,
        {argument: types[argument] for argument in names},
        constexprs={(names.index(c),): value for c, value in constants.items()},
    )
    return compile_(source, target=GPUTarget("cuda", capability, 32)).asm["ptx"]


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_on_a_gpu_they_give_the_same_bits_as_the_cpu(case):
    where = device.for_rank(0)
    assert what_differs(*case, where) == []
    n, block, bits = case
    quantizer, x = IntegerQuantizer(bits, block=block), vector(n, block)
    payload = quantizer.compress(x.to(where))
    same = torch.equal(quantizer.decompress(payload).cpu().nan_to_num(), through(quantizer, x))
    assert same and payload.wire[1].device.type == where.type


@pytest.mark.gpu
@pytest.mark.parametrize("block", [1 << 16, 1 << 40])
def test_on_a_gpu_their_speed_is_recorded(block, record_property):
    """Of a copy's, 100 MB: the aim is 0.7. Recorded for the GPU's report; a test asserts no times."""
    x = torch.randn(25_000_000, device=device.for_rank(0))
    quantizer, room = IntegerQuantizer(8, block=block), torch.empty_like(x)
    payload = quantizer.compress(x)

    def seconds(step) -> float:
        device.synchronize(x.device)
        start = time.perf_counter()
        for _ in range(20):
            step()
        device.synchronize(x.device)
        return time.perf_counter() - start

    steps = {
        "copy": lambda: room.copy_(x),
        "quantise": lambda: quantizer.compress(x),
        "dequantise": lambda: quantizer.decompress_into(payload, room),
    }
    found = [{name: seconds(step) for name, step in steps.items()} for _ in range(9)]
    for name in ("quantise", "dequantise"):
        speed = statistics.median(one["copy"] / one[name] for one in found[2:])
        record_property(f"{name}, of a copy's speed", round(speed, 2))
    assert (room - x).abs().max() <= 0.51 * payload.wire[0].max()


def through(quantizer: IntegerQuantizer, x: torch.Tensor) -> torch.Tensor:
    return quantizer.decompress(quantizer.compress(x)).nan_to_num()


if __name__ == "__main__":
    if sys.argv[1] == "interpret":
        print(json.dumps([what_differs(*case, torch.device("cpu")) for case in CASES]))
    else:
        print(json.dumps([compiled(*case) for case in KERNELS]))
