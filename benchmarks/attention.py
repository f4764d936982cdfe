"""Memory-efficient attention by hand against PyTorch's: time and memory of a forward and a backward pass, in one run.

    python benchmarks/attention.py --lengths 512 1024 2048 --steps 10

Steps alternate (ours, PyTorch's, ours, ...), so a machine whose speed drifts does the same to all. Prints the median of
the pairs' ratios: below 1.0 ours is faster. "math" holds all scores, "fused" is PyTorch's own kernel without them;
"triton" takes part where there is a GPU. Memory is what was live at once beyond the inputs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from dtcourse import device
from dtcourse.memory.attention import memory_efficient_attention
from dtcourse.memory.attention_triton import triton_attention, unavailable
from dtcourse.profiling.memory_tracker import MemoryTracker

Attention = Callable[..., torch.Tensor]


def contestants(like: torch.Tensor) -> dict[str, Attention]:
    """Functions of (q, k, v), all causal."""

    def torchs(*backends: SDPBackend) -> Attention:
        def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            with sdpa_kernel(list(backends)):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        return run

    found = {
        "ours": lambda q, k, v: memory_efficient_attention(q, k, v, causal=True),
        "math": torchs(SDPBackend.MATH),
        "fused": torchs(SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION),
    }
    if like.is_cuda and not unavailable(like):
        found["triton"] = lambda q, k, v: triton_attention(q, k, v, causal=True)
    return found


def step(attention: Attention, tensors: list[torch.Tensor], grad_out: torch.Tensor) -> float:
    """Seconds of one forward and backward pass."""
    start = time.perf_counter()
    torch.autograd.grad(attention(*tensors), tensors, grad_out)
    device.synchronize(grad_out.device)
    return time.perf_counter() - start


def peak_bytes(attention: Attention, tensors: list[torch.Tensor], grad_out: torch.Tensor) -> int:
    """Most bytes that were live at once beyond the inputs and the given gradient."""
    if device.is_gpu(grad_out.device):
        before = device.memory_allocated(grad_out.device)
        device.reset_peak_memory(grad_out.device)
        step(attention, tensors, grad_out)
        return device.peak_memory(grad_out.device) - before
    with MemoryTracker(inputs=[*tensors, grad_out]) as tracker:
        step(attention, tensors, grad_out)
    return tracker.peak.bytes - sum(x.nbytes for x in [*tensors, grad_out])


def main() -> None:
    """Runs the comparison and prints one line a length and contestant."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], default="float32")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    where = device.current()
    print(
        f"causal, batch {options.batch}, {options.heads} heads of {options.dim}, {options.dtype}, on {where}"
    )
    for length in options.lengths:
        shape = options.batch, options.heads, length, options.dim
        made = [
            torch.randn(shape, device=where, dtype=getattr(torch, options.dtype)) for _ in range(4)
        ]
        tensors, grad_out = [x.requires_grad_() for x in made[:3]], made[3]
        attentions = contestants(grad_out)
        times: dict[str, list[float]] = {name: [] for name in attentions}
        for _ in range(options.steps + 2):  # the first two warm up
            for name, attention in attentions.items():
                times[name].append(step(attention, tensors, grad_out))
        for name, attention in attentions.items():
            own = times[name][2:]
            line = f"{length:6d} {name:7s} {statistics.median(own) * 1e3:9.1f} ms"
            line += f" {peak_bytes(attention, tensors, grad_out) / 2**20:9.1f} MiB"
            if name in ("ours", "triton"):
                for other in ("math", "fused"):
                    ratios = [a / b for a, b in zip(own, times[other][2:], strict=True)]
                    low, middle, high = statistics.quantiles(ratios, n=4)
                    line += f"   / {other}: {middle:.2f} ({low:.2f} to {high:.2f})"
            print(line)


if __name__ == "__main__":
    main()
