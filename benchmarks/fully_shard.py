"""fully_shard by hand against PyTorch's: time of a training step, in pairs, in one run; and memory, each in a run of its own.

    python benchmarks/fully_shard.py --pairs 12        # writes benchmarks/results/fully_shard.json

Both shard the same transformer, a unit a block and the root, and train it with AdamW. Steps alternate (ours, PyTorch's,
ours, ...), so a machine whose speed drifts does the same to both; what is reported is the median of the pairs' ratios: below
1.0 ours is faster. Forward and backward are timed apart from the optimizer, because PyTorch's optimizer works on
DTensors, which cost time for each parameter and say nothing about gathering and reducing.

Memory is what PyTorch's allocator gave out and took back in a step, summed up to its peak, on top of what both hold between
steps: the profiler records every call, inside operators and collectives too. (A process's resident set would say less:
what the C library keeps for reuse is more than what a step needs.)
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import time
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard as torch_fully_shard

from dtcourse import device, launch
from dtcourse.models import Transformer, TransformerConfig, parameter_count
from dtcourse.profiling.memory import held
from dtcourse.sharding import fully_shard

RESULTS = Path(__file__).parent / "results" / "fully_shard.json"
KINDS = {"ours": fully_shard, "torch": torch_fully_shard}


def build(kind: str, config: TransformerConfig, reshard: bool | None) -> nn.Module:
    """The same model, sharded by one of the two."""
    model = Transformer(config).to(device.current())
    for block in model.blocks:
        KINDS[kind](block, reshard_after_forward=reshard)
    KINDS[kind](model, reshard_after_forward=reshard)
    return model


def tokens_for(config: TransformerConfig, batch: int, length: int) -> torch.Tensor:
    torch.manual_seed(dist.get_rank())
    return torch.randint(config.vocab, (batch, length + 1), device=device.current())


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, tokens_BS: torch.Tensor
) -> tuple[float, float]:
    """One step: seconds of forward and backward, and of the optimizer."""
    dist.barrier()
    start = time.perf_counter()
    logits_BSV = model(tokens_BS[:, :-1])
    loss = nn.functional.cross_entropy(logits_BSV.flatten(0, 1), tokens_BS[:, 1:].flatten())
    loss.backward()
    device.synchronize()
    middle = time.perf_counter()
    optimizer.step()
    optimizer.zero_grad()
    device.synchronize()
    return middle - start, time.perf_counter() - middle


def compare(
    config: TransformerConfig, batch: int, length: int, pairs: int, reshard: bool | None
) -> dict[str, Any]:
    """Alternating steps of both on this rank: seconds of each."""
    models = {}
    for kind in KINDS:
        model = build(kind, config, reshard)
        models[kind] = model, torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens_BS = tokens_for(config, batch, length)
    times: dict[str, list[tuple[float, float]]] = {kind: [] for kind in models}
    for _ in range(pairs + 2):
        for kind, (model, optimizer) in models.items():
            times[kind].append(train(model, optimizer, tokens_BS))
    return {kind: measured[2:] for kind, measured in times.items()}  # the first learn the order


def memory(
    kind: str, config: TransformerConfig, batch: int, length: int, reshard: bool | None
) -> float:
    """The most bytes of tensors that were live at once on this rank in three steps."""
    model = build(kind, config, reshard)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens_BS = tokens_for(config, batch, length)
    for _ in range(2):
        train(model, optimizer, tokens_BS)
    steady = sum(held(model, optimizer).values())
    most = 0
    for _ in range(3):
        with torch.profiler.profile(profile_memory=True) as profiled:
            train(model, optimizer, tokens_BS)
        calls = profiled.profiler.kineto_results.events()
        changes = sorted((e.start_ns(), e.nbytes()) for e in calls if e.name() == "[memory]")
        most = max(most, max(accumulate(change for _, change in changes)))
    return steady + most


def ratios(run: Any, part: slice) -> list[float]:
    """Ours over PyTorch's, pair by pair, of the slowest rank's seconds."""
    slowest = {
        kind: [
            max(sum(times[part]) for times in step)
            for step in zip(*(r[kind] for r in run), strict=True)
        ]
        for kind in KINDS
    }
    return [a / b for a, b in zip(slowest["ours"], slowest["torch"], strict=True)]


def main() -> None:
    """Runs the comparison, prints one line a quantity and writes the results file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--keep", action="store_true", help="reshard_after_forward=False in both")
    parser.add_argument("--no-memory", action="store_true", help="time only")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    config = TransformerConfig(
        vocab=256,
        n_layers=options.layers,
        d_model=options.width,
        n_heads=6,
        max_length=options.length,
    )
    reshard = False if options.keep else None  # None is PyTorch's default: all units but the root
    work = (config, options.batch, options.length)
    load = os.getloadavg()[0]
    run = launch(compare, options.ranks, *work, options.pairs, reshard, timeout=600.0)
    parameters = parameter_count(Transformer(config))
    report: dict[str, Any] = {
        "what": f"{parameters / 1e6:.1f} million parameters on {options.ranks} ranks of gloo, a unit a block, AdamW; "
        "ours / PyTorch's fully_shard, median and quartiles over pairs of steps",
        "date": datetime.date.today().isoformat(),
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "cores": os.cpu_count(),
            "load_before": round(load, 1),
            "torch": torch.__version__,
        },
        "milliseconds": {
            kind: round(statistics.median(max(sum(t) for t in s) for s in zip(*(r[kind] for r in run), strict=True)) * 1e3, 1)
            for kind in KINDS
        },
    }  # fmt: skip
    print(report["what"])
    parts = {"step": slice(0, 2), "forward and backward": slice(0, 1), "optimizer": slice(1, 2)}
    for name, part in parts.items():
        low, middle, high = statistics.quantiles(ratios(run, part), n=4)
        report[name] = {"ratio": round(middle, 3), "quartiles": [round(low, 3), round(high, 3)]}
        print(f"{name:22s} {middle:.2f} (quartiles {low:.2f} to {high:.2f})")
    for kind, milliseconds in report["milliseconds"].items():
        print(f"{kind:22s} {milliseconds:.0f} ms a step")
    if not options.no_memory:
        peaks = {kind: max(launch(memory, options.ranks, kind, *work, reshard)) for kind in KINDS}
        report["peak_memory_bytes"] = peaks
        report["peak_memory"] = {"ratio": round(peaks["ours"] / peaks["torch"], 3)}
        for kind, peak in peaks.items():
            print(f"{kind:22s} {peak / 2**20:.0f} MiB of tensors at the peak")
        print(f"{'peak memory':22s} {peaks['ours'] / peaks['torch']:.2f}")
    options.output.parent.mkdir(exist_ok=True)
    options.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
