"""All axes at once: hybrid.parallelize against PyTorch's own composition, time of a step, in pairs, in one run.

    python benchmarks/hybrid.py --pairs 12             # writes benchmarks/results/hybrid.json

PyTorch's side is DTensor's parallelize_module with loss_parallel, then fully_shard, then torch.distributed.pipelining's
1F1B, as tests/hybrid/against_torch.py composes them; tests/hybrid/test_torch.py holds both sides to the same gradients.
Steps alternate (ours, PyTorch's, ours, ...), in turns which is first, so a machine whose speed drifts does the same to
both; a step lasts as long as on its slowest rank. What is reported is the median of the pairs' ratios with its
quartiles: below 1.0 ours is faster. Beside it the ratio of processor seconds, of all ranks together: it says who does
more work, and no one else's load changes it much. Forward and backward are timed, and no optimizer, since PyTorch's
works on DTensors, which cost time for each parameter.

Both shard a unit a block, give parameters back after each forward, and reduce by the same gloo. They differ in one
choice, where full sharding meets a pipeline: from their first backward on, PyTorch's stages keep parameters whole, and
add up whole gradients that they reduce once per step; ours reduce after each micro-batch and gather for each forward
and backward, so that no rank holds a stage's gradients whole, and send 2.0 times the bytes for it (four micro-batches,
counted by run.traffic.by_axis on both). That is why pp x dp_shard alone is above 1.1.

The committed results were taken on two cores with much other work on them. Where there is tensor parallelism, DTensor
works in Python: with tp 2 alone, on 2 ranks, a profile counted 7 times as many calls per step as ours, and 21
all-reduces per micro-batch where ours has 20.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dtcourse import device, launch
from dtcourse.hybrid import HybridConfig, parallelize
from dtcourse.hybrid.parallelize import ranges_of
from dtcourse.models import Transformer, TransformerConfig, parameter_count
from reporting import pairs, training

sys.path.append(str(Path(__file__).resolve().parents[1]))  # PyTorch's side is the tests'
from tests.hybrid.against_torch import TorchTraining

RESULTS = Path(__file__).parent / "results" / "hybrid.json"
LAYOUTS: dict[str, dict[str, int]] = {
    "dp_shard 2 x tp 2": {"dp_shard": 2, "tp": 2},
    "pp 2 x dp_shard 2": {"pp": 2, "dp_shard": 2},
    "pp 2 x tp 2": {"pp": 2, "tp": 2},
    "pp 2 x dp_shard 2 x tp 2": {"pp": 2, "dp_shard": 2, "tp": 2},
}


def compare(
    degrees: dict[str, int],
    shape: TransformerConfig,
    batch: int,
    micro_batches: int,
    count: int,
) -> dict[str, list[tuple[float, float]]]:
    """Alternating steps of both on this rank: seconds on the clock, and of the processor."""
    cut = HybridConfig(**degrees, micro_batches=micro_batches, reduce_once=True)
    ranges = ranges_of(Transformer(shape), cut)
    mesh = cut.mesh(device.current().type)
    sides: dict[str, Any] = {
        "ours": parallelize(Transformer(shape).to(device.current()), mesh, cut),
        "torch": TorchTraining(
            Transformer(shape).to(device.current()), degrees, micro_batches, ranges
        ),
    }
    torch.manual_seed(sides["ours"].data_rank)
    tokens_BS = torch.randint(shape.vocab, (batch, shape.max_length + 1), device=device.current())
    tokens, targets = tokens_BS[:, :-1].contiguous(), tokens_BS[:, 1:].contiguous()

    def step(kind: str) -> tuple[float, float]:
        side = sides[kind]
        side.module.zero_grad()
        dist.barrier()
        start, worked = time.perf_counter(), time.process_time()
        side.step(tokens, targets)
        device.synchronize()
        return time.perf_counter() - start, time.process_time() - worked

    return pairs.in_turns({kind: partial(step, kind) for kind in sides}, count)


def compared(run: Any) -> dict[str, Any]:
    """The figures of all ranks: a step's time is that of its slowest rank, its work that of all."""
    clock = pairs.over_ranks(run, lambda ranks: max(seconds for seconds, _ in ranks))
    worked = pairs.over_ranks(run, lambda ranks: sum(seconds for _, seconds in ranks))
    return {
        "pairs": len(clock["ours"]),
        **pairs.ratio(clock["ours"], clock["torch"]),
        "milliseconds": pairs.milliseconds(clock),
        "processor": pairs.ratio(worked["ours"], worked["torch"]),
        "processor_milliseconds": pairs.milliseconds(worked),
        "least_milliseconds": {kind: round(min(each) * 1e3, 1) for kind, each in clock.items()},
    }


def main() -> None:
    """Runs the comparisons, prints a line a layout, and writes the results file."""
    parser = training.parser(__doc__, RESULTS, "--pairs")
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.set_defaults(batch=8, layers=4, width=256)
    options = parser.parse_args()
    shape = TransformerConfig(
        vocab=1024,
        n_layers=options.layers,
        d_model=options.width,
        n_heads=options.width // 32,
        max_length=options.length,
        tied=False,
        bias=False,
    )
    report = pairs.begin(
        f"{parameter_count(Transformer(shape)) / 1e6:.1f} million parameters, {options.batch} sequences of "
        f"{options.length} tokens per copy in {options.micro_batches} micro-batches, 1F1B; ours / PyTorch's "
        "fully_shard, parallelize_module and pipelining, median and quartiles over pairs of steps"
    )
    for name in options.layouts:
        degrees = LAYOUTS[name]
        work = (degrees, shape, options.batch, options.micro_batches, options.pairs)
        run = launch(compare, math.prod(degrees.values()), *work, timeout=1800.0)
        report[name] = one = compared(run)
        times = one["milliseconds"]
        print(
            f"{name:26s} {pairs.in_words(one)}, processor {pairs.in_words(one['processor'])}, "
            f"{times['ours']:.0f} / {times['torch']:.0f} ms a step",
            flush=True,
        )
    overall = statistics.geometric_mean(report[name]["ratio"] for name in options.layouts)
    report["geometric mean"] = round(overall, 3)
    pairs.write(report, options.output)


if __name__ == "__main__":
    main()
