"""A training that survives, as a program: srun ... python -m dtcourse.launch surviving.py:survive --folder FOLDER"""

from __future__ import annotations

import os
from pathlib import Path

import torch.distributed as dist

from dtcourse.course.survivor import Settings, train

SETTINGS = Settings(steps=40, every=10, pace=0.2)


def survive(folder: str) -> None:
    """What a rank has at the end is in FOLDER/end-RANK, with the number of times that Slurm has started it again."""
    bits = train(f"{folder}/checkpoints", "DDP", SETTINGS)
    again = os.environ.get("SLURM_RESTART_COUNT", "0")
    aside = Path(folder) / f"new-{dist.get_rank()}"
    aside.write_text(f"{again} {bits}")
    aside.replace(aside.with_name(f"end-{dist.get_rank()}"))
