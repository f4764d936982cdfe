"""Memory-efficient attention by hand in tiles of several sizes against PyTorch's fused kernel:
what tiles in Python reach.

    python benchmarks/attention_tiles.py --tiles 64 128 256 512

By the processor's time on one thread, which another program on the machine hardly changes; forward and backward, in
turns. Prints the median of the pairs' ratios: below 1.0 ours is faster. What follows from it
is said in memory/attention.py.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path

import torch
from attention import Attention, contestants

from dtcourse.memory.attention import memory_efficient_attention
from reporting import pairs

RESULTS = Path(__file__).parent / "results" / "attention_tiles.json"


def processor_step(
    attention: Attention, tensors: list[torch.Tensor], grad_out: torch.Tensor
) -> float:
    """Processor seconds of one forward and backward pass."""
    start = time.process_time()
    torch.autograd.grad(attention(*tensors), tensors, grad_out)
    return time.process_time() - start


def compare_tiles(tiles: list[int], shapes: list[tuple[int, int, int, int]], steps: int) -> None:
    """Ours in square tiles of each size against PyTorch's fused kernel, on one thread of the CPU; a line for each."""
    torch.set_num_threads(1)
    report = pairs.begin(
        f"causal, shapes {shapes}, float32, one thread: processor seconds of "
        "a forward and a backward pass, ours in square tiles / PyTorch's fused kernel's, median and quartiles of pairs"
    )
    for shape in shapes:
        tensors, grad_out = (
            [torch.randn(shape, requires_grad=True) for _ in range(3)],
            torch.randn(shape),
        )
        attentions = {"fused": contestants(grad_out)["fused"]}
        for tile in tiles:
            options = {"causal": True, "block_q": tile, "block_k": tile}
            attentions[f"tiles of {tile}"] = partial(memory_efficient_attention, **options)
        run = {
            name: partial(processor_step, each, tensors, grad_out)
            for name, each in attentions.items()
        }
        times = pairs.in_turns(run, steps)
        found = {name: pairs.ratio(times[name], times["fused"]) for name in attentions}
        for name, ratio in found.items():
            print(f"{shape[2]:6d} {name:13s} {pairs.in_words(ratio)}")
        report[f"length {shape[2]}"] = {"milliseconds": pairs.milliseconds(times), **found}
    pairs.write(report, RESULTS)


def main() -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--tiles", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    compare_tiles(options.tiles, [(1, 8, length, 64) for length in options.lengths], options.steps)


if __name__ == "__main__":
    main()
