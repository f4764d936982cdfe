"""Sharding by hand, in both layouts, against PyTorch's class of the same name, on 2 and on 4 ranks.

    python benchmarks/fully_shard.py --pairs 12        # writes benchmarks/results/fully_shard.json

Time of a training step, in pairs, in one run; and memory, each in a run of its own. Both shard the same transformer, a
unit a block and the root, and train it with AdamW. Steps alternate (ours, PyTorch's, ours, ...), so a machine whose
speed drifts does the same to both; what is reported is the median of the pairs' ratios: below 1.0 ours is faster.
Forward and backward are timed apart from the optimizer, because fully_shard's optimizer works on DTensors, which cost
time for each parameter and say nothing about gathering and reducing.

Ours keeps a unit's gradients in memory while they travel beside the next unit's backward. PyTorch's reduce-scatter
waits (async_op=False; on a GPU its own stream makes room for overlap), so on gloo its peak is lower. Counted at the
peak, in flat buffers as large as a unit: PyTorch's has the unit in use, the next one coming, and a copy of that which
gloo makes; ours has beside them the gradients under way, and gloo's copy of those. Not to gather before the gradients
have landed would save both, but when they land is chance: ranks would call collectives in different orders.

Memory is what PyTorch's allocator gave out and took back in a step, summed up to its peak, on top of what both hold
between steps: the profiler records every call, inside operators and collectives too. (A process's resident set would
say less: what the C library keeps for reuse is more than what a step needs.)
"""

from __future__ import annotations

import os
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as TorchFullyShardedDataParallel
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.fsdp import fully_shard as torch_fully_shard

from dtcourse import device, launch
from dtcourse.models import Transformer, TransformerConfig, parameter_count
from dtcourse.profiling.memory import held
from dtcourse.sharding import FullyShardedDataParallel, fully_shard
from reporting import pairs, training

RESULTS = Path(__file__).parent / "results" / "fully_shard.json"
KINDS = ("ours", "torch")
LAYOUTS = ("fully_shard", "FullyShardedDataParallel")


def build(kind: str, layout: str, config: TransformerConfig, keep: bool) -> nn.Module:
    """The same model, sharded by one of the four."""
    model = Transformer(config).to(device.current())
    shard: Any
    if layout == "fully_shard":
        reshard = False if keep else None  # None is PyTorch's default: all units but the root
        shard = partial(
            {"ours": fully_shard, "torch": torch_fully_shard}[kind], reshard_after_forward=reshard
        )
    elif kind == "ours":
        shard = partial(FullyShardedDataParallel, reshard_after_forward=not keep)
    else:
        strategy = ShardingStrategy.SHARD_GRAD_OP if keep else ShardingStrategy.FULL_SHARD
        shard = partial(
            TorchFullyShardedDataParallel,
            sharding_strategy=strategy,
            use_orig_params=True,
            device_id=device.current(),
        )
    for i, block in enumerate(model.blocks):
        model.blocks[i] = shard(block)
    return shard(model)


def tokens_for(config: TransformerConfig, batch: int, length: int) -> torch.Tensor:
    torch.manual_seed(dist.get_rank())
    return torch.randint(config.vocab, (batch, length + 1), device=device.current())


def compare(
    layout: str, config: TransformerConfig, batch: int, length: int, keep: bool, count: int
) -> dict[str, Any]:
    """Alternating steps of both on this rank: seconds of each."""
    models = {}
    for kind in KINDS:
        model = build(kind, layout, config, keep)
        models[kind] = model, torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens_BS = tokens_for(config, batch, length)
    return training.in_turns(models, tokens_BS, count)


def memory(
    kind: str, layout: str, config: TransformerConfig, batch: int, length: int, keep: bool
) -> float:
    """The most bytes of tensors that were live at once on this rank in three steps."""
    model = build(kind, layout, config, keep)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens_BS = tokens_for(config, batch, length)
    for _ in range(2):
        pairs.timed_step(lambda: training.loss(model, tokens_BS), optimizer)
    steady = sum(held(model, optimizer).values())
    most = 0
    for _ in range(3):
        with torch.profiler.profile(profile_memory=True) as profiled:
            pairs.timed_step(lambda: training.loss(model, tokens_BS), optimizer)
        calls = profiled.profiler.kineto_results.events()
        changes = sorted((e.start_ns(), e.nbytes()) for e in calls if e.name() == "[memory]")
        most = max(most, max(accumulate(change for _, change in changes)))
    return steady + most


def main() -> None:
    """Runs the comparison, prints one line a quantity and writes the results file."""
    # the profiler's own lines would fill the screen
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    parser = training.parser(__doc__, RESULTS, "--pairs", ranks=[2, 4])
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=LAYOUTS)
    parser.add_argument("--keep", action="store_true", help="reshard_after_forward=False in both")
    parser.add_argument("--no-memory", action="store_true", help="time only")
    options = parser.parse_args()
    config = training.config(options)
    work = (config, options.batch, options.length, options.keep)
    parameters = parameter_count(Transformer(config))
    report = pairs.begin(
        f"{parameters / 1e6:.1f} million parameters on gloo, a unit a block, AdamW; ours / PyTorch's class of the "
        "same name, median and quartiles over pairs of steps"
    )
    for layout in options.layouts:
        for ranks in options.ranks:
            name = f"{layout}, {ranks} ranks"
            print(f"\n{name}")
            run = launch(compare, ranks, layout, *work, options.pairs, timeout=600.0)
            report[name] = pairs.steps_compared(run)
            if options.no_memory:
                continue
            peaks = {kind: max(launch(memory, ranks, kind, layout, *work)) for kind in KINDS}
            report[name]["peak_memory_bytes"] = peaks
            report[name]["peak_memory"] = {"ratio": round(peaks["ours"] / peaks["torch"], 3)}
            for kind, peak in peaks.items():
                print(f"{kind:22s} {peak / 2**20:.0f} MiB of tensors at the peak")
            print(f"{'peak memory':22s} {peaks['ours'] / peaks['torch']:.2f}")
    pairs.write(report, options.output)


if __name__ == "__main__":
    main()
