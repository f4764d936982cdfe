"""Local SGD by hand against PyTorch's: time of a period of steps with its one average, in pairs, in one run.

    python benchmarks/local_sgd.py --ranks 2 --periods 12      # writes benchmarks/results/local_sgd.json

Both train the same transformer, and average the models after every fourth step: ours as LocalSGD, PyTorch's as a
PostLocalSGDOptimizer with a PeriodicModelAverager that begins at once. Periods alternate (ours, PyTorch's, ours, ...).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer

from dtcourse import device, launch
from dtcourse.asynchronous import LocalSGD
from dtcourse.models import Transformer, TransformerConfig, parameter_count
from reporting import pairs, training

RESULTS = Path(__file__).parent / "results" / "local_sgd.json"
PERIOD = 4


def optimizer_of(name: str, model: torch.nn.Module) -> torch.optim.Optimizer:
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    if name == "ours":
        return LocalSGD(model, sgd, PERIOD)
    return PostLocalSGDOptimizer(sgd, PeriodicModelAverager(period=PERIOD, warmup_steps=0))


def compare(
    config: TransformerConfig, batch: int, length: int, periods: int
) -> dict[str, list[tuple[float, float]]]:
    """Alternating periods of both on this rank: seconds of each, of its backwards and of its optimizer's steps."""
    where = device.current()
    tokens_BS = torch.randint(config.vocab, (batch, length + 1), device=where)
    made = {}
    for name in ("ours", "torch"):
        torch.manual_seed(0)
        model = Transformer(config).to(where)
        made[name] = model, optimizer_of(name, model)

    def period(name: str) -> tuple[float, float]:
        model, optimizer = made[name]
        loss = partial(training.loss, model, tokens_BS)
        steps = [pairs.timed_step(loss, optimizer) for _ in range(PERIOD)]
        backward, update = (sum(part) for part in zip(*steps, strict=True))
        return backward, update

    return pairs.in_turns({name: partial(period, name) for name in made}, periods)


def main() -> None:
    """Runs the comparison and prints one line a quantity."""
    options = training.parser(__doc__, RESULTS, count="--periods").parse_args()
    config = training.config(options)
    report = pairs.begin(
        f"{parameter_count(Transformer(config)) / 1e6:.1f} million parameters on {options.ranks} ranks, {PERIOD} steps "
        "of SGD and one average; ours / PyTorch's, median and quartiles over pairs of periods"
    )
    run = launch(
        compare,
        options.ranks,
        config,
        options.batch,
        options.length,
        options.periods,
        timeout=600.0,
    )
    report |= pairs.steps_compared(run, each_is=f"period of {PERIOD} steps")
    pairs.write(report, options.output)


if __name__ == "__main__":
    main()
