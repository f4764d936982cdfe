"""DistributedDataParallel by hand against PyTorch's: time of a training step, in pairs, in one run.

    python benchmarks/ddp.py --ranks 2 --steps 12      # writes benchmarks/results/ddp.json

Both wrap the same transformer; steps alternate (ours, PyTorch's, ours, ...), so a machine whose speed drifts does the
same to both. Prints the median of the pairs' ratios: below 1.0 ours is faster.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from dtcourse import device, launch
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.models import Transformer, TransformerConfig, parameter_count
from reporting import pairs

RESULTS = Path(__file__).parent / "results" / "ddp.json"


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

    def step(name: str) -> tuple[float, float]:
        model, optimizer = models[name]

        def loss() -> torch.Tensor:
            logits_BSV = model(tokens_BS[:, :-1])
            return nn.functional.cross_entropy(logits_BSV.flatten(0, 1), tokens_BS[:, 1:].flatten())

        return pairs.timed_step(loss, optimizer)

    return pairs.in_turns({name: partial(step, name) for name in models}, steps)


def main() -> None:
    """Runs the comparison and prints one line a quantity."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    config = TransformerConfig(
        vocab=256,
        n_layers=options.layers,
        d_model=options.width,
        n_heads=6,
        max_length=options.length,
    )
    report = pairs.begin(
        f"{parameter_count(Transformer(config)) / 1e6:.1f} million parameters on {options.ranks} ranks, SGD; ours / PyTorch's "
        "DistributedDataParallel, median and quartiles over pairs of steps"
    )
    run = launch(
        compare, options.ranks, config, options.batch, options.length, options.steps, timeout=600.0
    )
    report |= pairs.steps_compared(run)
    pairs.write(report, options.output)


if __name__ == "__main__":
    main()
