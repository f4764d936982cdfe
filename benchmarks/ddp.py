"""DistributedDataParallel by hand against PyTorch's: time of a training step, in pairs, in one run.

    python benchmarks/ddp.py --ranks 2 --steps 12      # writes benchmarks/results/ddp.json

Both wrap the same transformer; steps alternate (ours, PyTorch's, ours, ...), so a machine whose speed drifts does the
same to both. Prints the median of the pairs' ratios: below 1.0 ours is faster.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from dtcourse import device, launch
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.models import Transformer, TransformerConfig, parameter_count
from reporting import pairs, training

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
    return training.in_turns(models, tokens_BS, steps)


def main() -> None:
    """Runs the comparison and prints one line a quantity."""
    parser = training.parser(__doc__, RESULTS)
    options = parser.parse_args()
    config = training.config(options)
    report = pairs.begin(
        f"{parameter_count(Transformer(config)) / 1e6:.1f} million parameters on {options.ranks} ranks, SGD; ours / "
        "PyTorch's DistributedDataParallel, median and quartiles over pairs of steps"
    )
    run = launch(
        compare, options.ranks, config, options.batch, options.length, options.steps, timeout=600.0
    )
    report |= pairs.steps_compared(run)
    pairs.write(report, options.output)


if __name__ == "__main__":
    main()
