"""ZeRO-1 and ZeRO-2 by hand against PyTorch's DDP with its ZeroRedundancyOptimizer: time of a step, in groups of three.

    python benchmarks/zero.py --ranks 2 --steps 12     # writes benchmarks/results/zero.json

All train the same transformer with AdamW; steps alternate (PyTorch's, ours over DDP, ours as ZeRO-2, PyTorch's, ...),
so a machine whose speed drifts does the same to all. Prints the medians of the ratios to PyTorch's: below 1.0 ours is
faster.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer as TorchZero
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from dtcourse import device, launch
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.models import Transformer, TransformerConfig, parameter_count
from dtcourse.sharding import ShardedDataParallel, ZeroRedundancyOptimizer
from reporting import pairs, training

RESULTS = Path(__file__).parent / "results" / "zero.json"
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
    return training.in_turns(made, tokens_BS, steps)


def main() -> None:
    """Runs the comparison and prints one line a quantity."""
    parser = training.parser(__doc__, RESULTS)
    options = parser.parse_args()
    config = TransformerConfig(
        n_layers=options.layers, d_model=options.width, n_heads=6, max_length=options.length
    )
    sizes = options.batch, options.length, options.steps
    report = pairs.begin(
        f"{parameter_count(Transformer(config)) / 1e6:.1f} million parameters on {options.ranks} ranks, AdamW; a "
        "step / one of PyTorch's DDP with its ZeroRedundancyOptimizer, median and quartiles over pairs"
    )
    run = launch(compare, options.ranks, config, *sizes, timeout=600.0)
    seconds = pairs.slowest(run, pairs.PARTS["step"])
    report["milliseconds"] = pairs.milliseconds(seconds)
    for way, each in report["milliseconds"].items():
        print(f"{way:26s} {each:8.1f} ms a step (median of {options.steps})")
    for way in WAYS[1:]:
        report[way] = pairs.ratio(seconds[way], seconds[WAYS[0]])
        print(f"{way} / PyTorch's: {pairs.in_words(report[way])}")
    pairs.write(report, options.output)


if __name__ == "__main__":
    main()
