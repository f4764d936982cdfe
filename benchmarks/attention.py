"""Memory-efficient attention by hand against PyTorch's: time and memory of a forward and a backward pass, in one run.

    python benchmarks/attention.py --lengths 512 1024 2048 --steps 10

Steps alternate (ours, PyTorch's, ours, ...), so a machine whose speed drifts does the same to all. Prints the median of
the pairs' ratios: below 1.0 ours is faster. "math" holds all scores, "fused" is PyTorch's own kernel without them;
"triton" takes part where there is a GPU. Memory is what was live at once beyond the inputs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from dtcourse import device
from dtcourse.memory.attention import memory_efficient_attention
from dtcourse.memory.attention_triton import triton_attention, unavailable
from dtcourse.profiling.memory_tracker import MemoryTracker
from reporting import pairs

Attention = Callable[..., torch.Tensor]
RESULTS = Path(__file__).parent / "results" / "attention.json"


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
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    where = device.current()
    report = pairs.begin(
        f"causal, batch {options.batch}, {options.heads} heads of {options.dim}, {options.dtype}, on {where}: "
        "seconds of a forward and a backward pass, ours / PyTorch's, median and quartiles of pairs; and bytes live "
        "at the peak"
    )
    for length in options.lengths:
        shape = options.batch, options.heads, length, options.dim
        made = [
            torch.randn(shape, device=where, dtype=getattr(torch, options.dtype)) for _ in range(4)
        ]
        tensors, grad_out = [x.requires_grad_() for x in made[:3]], made[3]
        attentions = contestants(grad_out)
        run = {name: partial(step, attentions[name], tensors, grad_out) for name in attentions}
        times = pairs.in_turns(run, options.steps)
        found: dict[str, Any] = {"milliseconds": pairs.milliseconds(times)}
        found["peak_bytes"] = {
            name: peak_bytes(a, tensors, grad_out) for name, a in attentions.items()
        }
        for name in attentions:
            line = f"{length:6d} {name:7s} {found['milliseconds'][name]:9.1f} ms"
            line += f" {found['peak_bytes'][name] / 2**20:9.1f} MiB"
            if name in ("ours", "triton"):
                for other in ("math", "fused"):
                    found[f"{name} / {other}"] = pairs.ratio(times[name], times[other])
                    line += f"   / {other}: {pairs.in_words(found[f'{name} / {other}'])}"
            print(line)
        report[f"length {length}"] = found
    pairs.write(report, options.output)


if __name__ == "__main__":
    main()
