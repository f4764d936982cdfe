"""A training program that is preempted in step 5: under launch, torchrun and Slurm alike.

    python -m torch.distributed.run ... preempted.py FOLDER

Rank 1 waits in step 5 of its first start until it has heard a signal; it has left its process id in FOLDER/pid. What
each rank has heard is in FOLDER/heard-RANK. Where there is a FOLDER/slow, no save ends.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.fault_tolerance import (
    BucketLayout,
    Checkpoints,
    Preemption,
    RandomStates,
    TrainingState,
)

STEPS, HEARS = 10, 5


def train(folder: str, every: int = 1) -> list[float]:
    """The weights' first numbers at the end. Each step of each start is in FOLDER/log-RANK."""
    root, rank = Path(folder), dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    own = {"random": RandomStates(), "buckets": BucketLayout(model.reducer)}
    state = TrainingState.of(model, optimizer, own=own)
    checkpoints = Checkpoints(root / "checkpoints")
    found = checkpoints.latest()
    first = state.load(found) if found else 0
    with Preemption(every=every) as preemption, (root / f"log-{rank}").open("a") as log:
        for step in range(first + 1, STEPS + 1):
            print(step, end=" ", file=log, flush=True)
            while step == HEARS and first == 0 and rank == 1 and not preemption.heard:
                (root / "new").write_text(str(os.getpid()))
                (root / "new").replace(root / "pid")
                time.sleep(0.01)
            model(torch.ones(3, 4)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if preemption.agreed(step):
                (root / f"heard-{rank}").write_text(" ".join(one.name for one in preemption.heard))
                while (root / "slow").exists():
                    time.sleep(0.1)
                checkpoints.save(step, state.snapshot(), state.about())
                preemption.leave()
    return model.module[0].weight.flatten()[:4].tolist()


def main() -> None:
    """One rank, of torchrun's names or Slurm's."""
    from dtcourse.launch.__main__ import adopt_scheduler

    adopt_scheduler(os.environ)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    dist.init_process_group("gloo")
    try:
        print(train(sys.argv[1]), file=(Path(sys.argv[1]) / f"end-{dist.get_rank()}").open("w"))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
