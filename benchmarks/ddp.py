"""DistributedDataParallel by hand against PyTorch's: time of a training step, in pairs, in one run.

    python benchmarks/ddp.py --ranks 2 --steps 12

Both wrap the same transformer; steps alternate (ours, PyTorch's, ours, ...), so a machine whose speed drifts does the
same to both. Prints the median of the pairs' ratios: below 1.0 ours is faster.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from dtcourse import device, launch
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.models import Transformer, TransformerConfig, parameter_count


def compare(config: TransformerConfig, batch: int, length: int, steps: int) -> dict[str, object]:
    """Alternating steps of both on this rank: seconds of each."""
    where = device.current()
    models = {}
    for name, wrap in (("ours", DistributedDataParallel), ("torch", TorchDDP)):
        torch.manual_seed(0)
        model = Transformer(config).to(where)
        wrapped = wrap(model)
        models[name] = wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.01)
    tokens_BS = torch.randint(config.vocab, (batch, length + 1), device=where)
    times: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(steps + 2):
        for name, (model, optimizer) in models.items():
            dist.barrier()
            start = time.perf_counter()
            optimizer.zero_grad()
            logits_BSV = model(tokens_BS[:, :-1])
            loss = torch.nn.functional.cross_entropy(
                logits_BSV.flatten(0, 1), tokens_BS[:, 1:].flatten()
            )
            loss.backward()
            optimizer.step()
            device.synchronize()
            times[name].append(time.perf_counter() - start)
    # The first two steps build buckets, and build them again.
    return {"times": {n: t[2:] for n, t in times.items()}, "parameters": parameter_count(model)}


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
        vocab=256,
        n_layers=options.layers,
        d_model=options.width,
        n_heads=6,
        max_length=options.length,
    )
    run = launch(
        compare, options.ranks, config, options.batch, options.length, options.steps, timeout=600.0
    )
    slowest = {
        name: [max(step) for step in zip(*(r["times"][name] for r in run), strict=True)]
        for name in ("ours", "torch")
    }
    ratios = [a / b for a, b in zip(slowest["ours"], slowest["torch"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"{run[0]['parameters'] / 1e6:.1f} million parameters; {run.layout}")
    for name, times in slowest.items():
        print(f"{name:6s} {statistics.median(times) * 1e3:8.1f} ms a step (median of {len(times)})")
    print(f"ours / PyTorch's: {middle:.2f} (quartiles {low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
