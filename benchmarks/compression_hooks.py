"""Compression in DistributedDataParallel: our hooks against PyTorch's own, time of a training step, in pairs,
in one run.

    python benchmarks/compression_hooks.py --ranks 2 --steps 12      # writes benchmarks/results/compression_hooks.json

PyTorch's DistributedDataParallel round the same transformer each time; only what is registered with it differs. Steps
alternate (ours, PyTorch's, ours, ...), so a machine whose speed drifts does the same to both. Below 1.0 ours is faster.

PowerSGD has all gradients in one bucket, in both: PyTorch's hook calls its second all-reduce from a callback, in
another order on each rank where there are several buckets, and on gloo that may mix them up.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from dtcourse import device, launch
from dtcourse.compression import (
    CompressionState,
    HalfPrecision,
    PowerSGDState,
    compression_hook,
)
from dtcourse.models import Transformer, TransformerConfig, parameter_count
from reporting import pairs, training

RESULTS = Path(__file__).parent / "results" / "compression_hooks.json"
RANK = 4
WHOLE_STEPS = 2  # which PyTorch's PowerSGD asks for
ONE_BUCKET_MB = 1000


def hooks(method: str) -> dict[str, tuple[Any, Any]]:
    """(state, hook): ours, and PyTorch's."""
    if method == "float16":
        ours: Any = CompressionState(HalfPrecision(), error_feedback=False)
        return {
            "ours": (ours, compression_hook),
            "torch": (None, default_hooks.fp16_compress_hook),
        }
    ours = PowerSGDState(RANK, start_after=WHOLE_STEPS)
    theirs = powerSGD_hook.PowerSGDState(None, RANK, start_powerSGD_iter=WHOLE_STEPS)
    return {"ours": (ours, compression_hook), "torch": (theirs, powerSGD_hook.powerSGD_hook)}


def compare(
    method: str, config: TransformerConfig, batch: int, length: int, steps: int
) -> dict[str, Any]:
    """Alternating steps of both on this rank: seconds of each."""
    where = device.current()
    models = {}
    for name, (state, hook) in hooks(method).items():
        torch.manual_seed(0)
        cap = ONE_BUCKET_MB if method == "PowerSGD" else None
        wrapped = DistributedDataParallel(Transformer(config).to(where), bucket_cap_mb=cap)
        wrapped.register_comm_hook(state, hook)
        models[name] = wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.01)
    tokens_BS = torch.randint(config.vocab, (batch, length + 1), device=where)
    return training.in_turns(models, tokens_BS, steps)


def main() -> None:
    """Runs the comparisons and prints one line a quantity."""
    parser = training.parser(__doc__, RESULTS)
    options = parser.parse_args()
    config = training.config(options)
    report = pairs.begin(
        f"{parameter_count(Transformer(config)) / 1e6:.1f} million parameters on {options.ranks} ranks, SGD; our "
        f"hooks / PyTorch's, of rank {RANK} for PowerSGD, median and quartiles over pairs of steps"
    )
    for method in ("float16", "PowerSGD"):
        print(f"--- {method}", flush=True)
        run = launch(
            compare,
            options.ranks,
            method,
            config,
            options.batch,
            options.length,
            options.steps,
            timeout=900.0,
        )
        report[method] = pairs.steps_compared(run)
    pairs.write(report, options.output)


if __name__ == "__main__":
    main()
