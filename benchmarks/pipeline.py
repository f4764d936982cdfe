"""The pipeline engine against torch.distributed.pipelining: time of a step in pairs, and memory, schedule by schedule.

    python benchmarks/pipeline.py --pairs 16           # writes benchmarks/results/pipeline.json

Both perform the same schedule with the same stages of the same transformer, on ranks of gloo with one thread each. The
two steps of a pair follow each other, in turns which is first, so a machine whose speed drifts does the same to both; a
step lasts as long as on its slowest rank. What is reported is the median of the pairs' ratios: below 1.0 ours is
faster. Nothing but the schedule is timed: no optimizer, and PyTorch is told not to collect outputs, which ours never
does. Beside it, the ratio of processor seconds, of all ranks together: it says who does more work, and no one else's
load changes it much.

Memory is the most bytes of tensors that are live at once in a step besides parameters, gradients and the batch, as
`profiling.memory_tracker` sees them: activations, messages, and what stands between steps. (PyTorch keeps a buffer for
each micro-batch's input and gradient for good; ours lives from its receive to the action that uses it up.)

The committed results were taken on two cores with much other work on them (`load_before`), a schedule at a time. Ratios
of time lie between 0.87 and 1.04, and the lower quartile of each is below 1.0. Above 1.0, within that noise, are 1F1B,
ZB-H1, ZB-V and DualPipe-V on 4 ranks, which share the two cores; an idle machine has not measured them. Peak memory is
less than PyTorch's in every schedule: 0.97 to 0.99 of it in GPipe and 1F1B, 0.62 in ZB-H1, where PyTorch keeps the
graph until backward-weight (retain_graph).
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed import pipelining

from dtcourse import launch
from dtcourse.models import Transformer, TransformerConfig
from dtcourse.pipeline_parallel import schedules, zero_bubble
from dtcourse.pipeline_parallel.actions import Schedule
from dtcourse.pipeline_parallel.balance import balance
from dtcourse.pipeline_parallel.engine import Pipeline, split
from dtcourse.profiling.memory_tracker import MemoryTracker
from reporting import pairs

RESULTS = Path(__file__).parent / "results" / "pipeline.json"
MAKE: dict[str, tuple[Callable[[int, int], Schedule], Any]] = {
    "GPipe": (schedules.gpipe, pipelining.ScheduleGPipe),
    "1F1B": (schedules.one_f_one_b, pipelining.Schedule1F1B),
    "interleaved 1F1B": (
        lambda p, m: schedules.interleaved_1f1b(p, m, 2),
        pipelining.ScheduleInterleaved1F1B,
    ),
    "breadth-first": (
        lambda p, m: schedules.breadth_first(p, m, 2),
        pipelining.ScheduleLoopedBFS,
    ),
    "ZB-H1": (zero_bubble.zb_h1, pipelining.ScheduleInterleavedZeroBubble),
    "ZB-V": (zero_bubble.zb_v, pipelining.ScheduleZBVZeroBubble),
    "DualPipe-V": (zero_bubble.dualpipe_v, pipelining.ScheduleDualPipeV),
}


@dataclass
class Work:
    """What both do: a schedule by name, a model, and a batch of token sequences in micro-batches."""

    name: str
    shape: TransformerConfig
    micro_batches: int
    batch: int
    length: int


@dataclass
class Side:
    """One of the two on this rank. step: performs the schedule once; standing: buffers that it keeps between steps."""

    stages: list[nn.Sequential]
    step: Callable[[], Any]
    standing: Callable[[], Iterator[torch.Tensor]] = lambda: iter(())


class Head(nn.Module):
    """The last layer: x_BSD -> logits_BVS, as cross_entropy takes them."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.norm, self.output = model.norm, model.output

    def forward(self, x_BSD: torch.Tensor) -> torch.Tensor:
        return self.output(self.norm(x_BSD)).transpose(1, 2)


def stages_of(shape: TransformerConfig, schedule: Schedule) -> list[nn.Sequential]:
    """This rank's: the blocks in equal shares, with the embedding before the first and the head after the last."""
    model = Transformer(shape)
    costs = [0.1, *[1.0] * shape.n_layers, 0.1]
    layers = [model.token_embedding, *model.blocks, Head(model)]
    return split(layers, balance(costs, schedule.num_stages), schedule, dist.get_rank())


def sides(work: Work) -> tuple[dict[str, Side], list[torch.Tensor]]:
    """Ours and PyTorch's, and the batch."""
    make, theirs = MAKE[work.name]
    schedule = make(dist.get_world_size(), work.micro_batches)
    torch.manual_seed(0)
    tokens_BS = torch.randint(work.shape.vocab, (work.batch, work.length + 1))
    x, target = tokens_BS[:, :-1].clone(), tokens_BS[:, 1:].clone()

    stages = stages_of(work.shape, schedule)
    pipeline = Pipeline(stages, schedule, F.cross_entropy)
    ours = Side(stages, lambda: pipeline.step(x, target))

    stages = stages_of(work.shape, schedule)
    numbers = schedule.stages_of(dist.get_rank())
    wrapped: list[Any] = [
        pipelining.PipelineStage(stage, number, schedule.num_stages, torch.device("cpu"))
        for stage, number in zip(stages, numbers, strict=True)
    ]
    one = issubclass(theirs, pipelining.schedules.PipelineScheduleSingle)
    performs = theirs(wrapped[0] if one else wrapped, work.micro_batches, loss_fn=F.cross_entropy)
    root = (x,) if 0 in numbers else ()

    def buffers() -> Iterator[torch.Tensor]:
        for stage in wrapped:
            for expected in (*stage.args_recv_info.values(), *stage.grad_recv_info.values()):
                yield from (one.buffer for one in expected if one.buffer is not None)

    torchs = Side(
        stages,
        lambda: performs.step(*root, target=target, losses=[], return_outputs=False),
        buffers,
    )
    return {"ours": ours, "torch": torchs}, [x, target]


def measure(work: Work, pairs: int) -> dict[str, Any]:
    """On this rank: seconds of both on the clock and of the processor, pair by pair, and the most bytes of each."""
    both, batch = sides(work)
    seconds: dict[str, list[float]] = {kind: [] for kind in both}
    processor: dict[str, list[float]] = {kind: [] for kind in both}
    for pair in range(-2, pairs):  # in the first steps both learn shapes
        for kind in list(both)[:: 1 if pair % 2 else -1]:
            side = both[kind]
            for stage in side.stages:
                stage.zero_grad()
            dist.barrier()
            start, worked = time.perf_counter(), time.process_time()
            side.step()
            if pair >= 0:
                seconds[kind].append(time.perf_counter() - start)
                processor[kind].append(time.process_time() - worked)
    most = {kind: most_bytes(side, batch) for kind, side in both.items()}
    return {"seconds": seconds, "processor": processor, "bytes": most}


def measure_all(works: list[Work], pairs: int) -> dict[str, dict[str, Any]]:
    """Every schedule, by name, in one launch."""
    found = {}
    for work in works:
        load = os.getloadavg()[0]
        found[work.name] = {**measure(work, pairs), "load": load}
    return found


def most_bytes(side: Side, batch: list[torch.Tensor]) -> int:
    """The most bytes that a step has alive at once, besides parameters, gradients and the batch."""
    for stage in side.stages:
        stage.zero_grad()
    dist.barrier()
    with MemoryTracker(side.stages, inputs=batch) as tracker:
        tracker.mark(side.standing(), "activations")
        side.step()
    curve = tracker.history.curve()
    alive = curve["activations"] + curve["other"]
    return int(alive.max()) - sum(one.nbytes for one in batch)


def compared(run: Any) -> dict[str, Any]:
    """The figures of all ranks: a step's time is that of its slowest rank; bytes are by rank."""
    seconds = pairs.over_ranks((r["seconds"] for r in run), max)
    processor = pairs.over_ranks((r["processor"] for r in run), sum)
    most = {kind: [r["bytes"][kind] for r in run] for kind in seconds}
    return {
        "pairs": len(seconds["ours"]),
        **pairs.ratio(seconds["ours"], seconds["torch"]),
        "milliseconds": pairs.milliseconds(seconds),
        "processor_ratio": pairs.ratio(processor["ours"], processor["torch"])["ratio"],
        "peak_bytes": most,
        "peak_ratio": round(max(most["ours"]) / max(most["torch"]), 3),
        "load_before": round(run[0]["load"], 1),
    }


def main() -> None:
    """Runs the comparisons, prints a line a schedule and number of ranks, and writes the results file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--schedules", nargs="+", choices=MAKE, default=list(MAKE))
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    config = TransformerConfig(
        n_layers=options.layers,
        d_model=options.width,
        n_heads=4,
        max_length=options.length,
        tied=False,
    )
    report = pairs.begin(
        f"{options.layers} blocks {options.width} wide, {options.batch} sequences of {options.length} tokens in "
        f"{options.micro_batches} micro-batches, gloo, one thread per "
        "rank; ours / torch.distributed.pipelining, median and quartiles over pairs of steps, and peak bytes by "
        "rank besides parameters, gradients and the batch"
    )
    print(
        f"{'':32s} ours / PyTorch's  (quartiles)   processor     ms a step   peak memory, MiB   load"
    )
    work = (config, options.micro_batches, options.batch, options.length)
    works = [Work(name, *work) for name in options.schedules]
    for ranks in options.ranks:
        run = launch(measure_all, ranks, works, options.pairs, timeout=3600.0)
        for name in options.schedules:
            one = compared([found[name] for found in run])
            report.setdefault(f"{ranks} ranks", {})[name] = one
            times, most = one["milliseconds"], one["peak_bytes"]
            print(
                f"{ranks} ranks  {name:22s} {one['ratio']:10.2f}        ({one['quartiles'][0]:.2f} to "
                f"{one['quartiles'][1]:.2f})   {one['processor_ratio']:9.2f}   {times['ours']:5.0f} / "
                f"{times['torch']:5.0f}   {max(most['ours']) / 2**20:6.1f} / {max(most['torch']) / 2**20:6.1f}   "
                f"{one['load_before']:4.1f}",
                flush=True,
            )
    pairs.write(report, options.output)


if __name__ == "__main__":
    main()
