"""ZeRO-1 and ZeRO-2 by hand against PyTorch's DDP with its ZeroRedundancyOptimizer: time of a step, in groups of three.

    python benchmarks/zero.py --ranks 2 --steps 12

All train the same transformer with AdamW; steps alternate (PyTorch's, ours over DDP, ours as ZeRO-2, PyTorch's, ...), so a
machine whose speed drifts does the same to all. Prints the medians of the ratios to PyTorch's: below 1.0 ours is faster.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer as TorchZero
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from dtcourse import device, launch
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.models import Transformer, TransformerConfig, parameter_count
from dtcourse.sharding import ShardedDataParallel, ZeroRedundancyOptimizer

WAYS = ("PyTorch's ZeRO-1 over DDP", "ours: ZeRO-1 over DDP", "ours: ZeRO-2")
ADAM = {"optimizer_class": torch.optim.AdamW, "lr": 1e-4}


def build(way: str, config: TransformerConfig) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The wrapped model and its optimizer."""
    model = Transformer(config).to(device.current())
    if way == WAYS[0]:
        return TorchDDP(model), TorchZero(model.parameters(), **ADAM)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), **ADAM)
    if way == WAYS[1]:
        return DistributedDataParallel(model), optimizer
    return ShardedDataParallel(model, optimizer), optimizer


def compare(config: TransformerConfig, batch: int, length: int, steps: int) -> dict[str, Any]:
    """Alternating steps of all three on this rank: seconds of each."""
    made = {way: build(way, config) for way in WAYS}
    tokens_BS = torch.randint(config.vocab, (batch, length + 1), device=device.current())
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(steps + 2):
        for way, (model, optimizer) in made.items():
            dist.barrier()
            start = time.perf_counter()
            optimizer.zero_grad()
            logits_BSV = model(tokens_BS[:, :-1])
            nn.functional.cross_entropy(
                logits_BSV.flatten(0, 1), tokens_BS[:, 1:].flatten()
            ).backward()
            optimizer.step()
            device.synchronize()
            times[way].append(time.perf_counter() - start)
    # The first two steps build buckets, and build them again.
    return {way: seconds[2:] for way, seconds in times.items()}


def main() -> None:
    """Runs the comparison and prints one line a quantity."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=64)
    options = parser.parse_args()
    config = TransformerConfig(
        n_layers=options.layers, d_model=options.width, n_heads=6, max_length=options.length
    )
    sizes = options.batch, options.length, options.steps
    run = launch(compare, options.ranks, config, *sizes, timeout=600.0)
    slowest = {way: [max(s) for s in zip(*(r[way] for r in run), strict=True)] for way in WAYS}
    print(f"{parameter_count(Transformer(config)) / 1e6:.1f} million parameters; {run.layout}")
    for way, times in slowest.items():
        print(f"{way:26s} {statistics.median(times) * 1e3:8.1f} ms a step (median of {len(times)})")
    for way in WAYS[1:]:
        ratios = [a / b for a, b in zip(slowest[way], slowest[WAYS[0]], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"{way} / PyTorch's: {middle:.2f} (quartiles {low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
