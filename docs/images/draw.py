"""Draws the pictures of the README and the documentation again, each from a real run: python docs/images/draw.py."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from dtcourse import launch, plots
from dtcourse.collectives import ring
from dtcourse.events import Timeline, span
from dtcourse.models import Transformer, TransformerConfig
from dtcourse.profiling.replay import Replay

HERE = Path(__file__).parent


def train() -> None:
    """PyTorch's own DDP, over the ring that the learner writes."""
    torch.manual_seed(0)
    model = DistributedDataParallel(
        Transformer(TransformerConfig(d_model=128, n_layers=3)), bucket_cap_mb=0.8
    )
    for _ in range(4):
        tokens = torch.randint(256, (4, 129))
        with span("step", "step"):
            with span("forward"):
                logits = model(tokens[:, :-1])
                loss = torch.nn.functional.cross_entropy(
                    logits.flatten(0, 1), tokens[:, 1:].flatten()
                )
            with span("backward"):
                loss.backward()


def reduce() -> None:
    """One all-reduce of four elements, of which rank r begins with 10**r in each."""
    rank = torch.distributed.get_rank()
    ring.all_reduce(torch.full((4,), 10.0**rank))


def timeline() -> plots.Picture:
    """The last step, on its own: the first ones build DDP's buckets."""
    run = launch(train, 2, backend="ring", record=True)
    last = max(e.start for e in run.timeline.of(kind="step", rank=0))
    kept = [e for e in run.timeline if e.start >= last - 0.001 and e.lane != "messages"]
    return plots.timeline(
        Timeline(kept),
        title="PyTorch's DDP over our own ring: gradients travel while backward runs",
    )


def all_reduce() -> plots.Picture:
    """Who sends what to whom, in every step, and what each rank has after it."""
    run = launch(reduce, 4, backend="ring", record=True)
    replay = Replay.of(run.timeline, [[10.0**r] * 4 for r in range(4)])
    return plots.message_grid(
        *plots.from_replay(replay),
        title="A ring all-reduce on four ranks, drawn from the messages of a real run",
    )


if __name__ == "__main__":
    (HERE / "timeline.png").write_bytes(timeline().png())
    (HERE / "ring.png").write_bytes(all_reduce().png())
