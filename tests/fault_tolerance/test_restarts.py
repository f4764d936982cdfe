"""Under torchrun a worker is killed: all are started again, and go on from the checkpoint with the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import launch
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.fault_tolerance import BucketLayout, Checkpoints, RandomStates, TrainingState
from dtcourse.fault_tolerance.elastic import restarting_command, resume, start_number

ROOT = Path(__file__).resolve().parents[2]
SAVED, DIES, LAST = 4, 6, 8


def train(folder, kills):
    """Rank 1 is killed in step 6 of the first start. Each step of each start is in FOLDER/log-RANK."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    own = {"random": RandomStates(), "buckets": BucketLayout(model.reducer)}
    state = TrainingState.of(model, optimizer, own=own)
    checkpoints = Checkpoints(Path(folder) / "checkpoints")
    first = resume(checkpoints, state)
    with (Path(folder) / f"log-{rank}").open("a") as log:
        for step in range(first + 1, LAST + 1):
            print(f"{start_number()}:{step}", end=" ", file=log, flush=True)
            if kills and (start_number(), step, rank) == (0, DIES, 1):
                os.kill(os.getpid(), signal.SIGKILL)
            model(torch.ones(3, 4)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % SAVED == 0:
                checkpoints.save(step, state.snapshot(), state.about())
    bits = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
    (Path(folder) / f"end-{rank}").write_bytes(bits)
    return


@pytest.mark.stands_on("dtcourse/fault_tolerance/", "dtcourse/launch/")
def test_a_killed_worker_has_all_start_again_from_the_checkpoint(tmp_path):
    command = restarting_command(
        train, 2, str(tmp_path), True, max_restarts=1, save_to=tmp_path / "train.pkl"
    )
    names = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "MASTER_", "SLURM_", "TORCHELASTIC_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, env=clean | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    second = [f"1:{step}" for step in range(SAVED + 1, LAST + 1)]
    for rank in range(2):
        steps = (tmp_path / f"log-{rank}").read_text().split()
        before = [f"0:{step}" for step in range(1, DIES + 1)]
        # Rank 0 is ended while it waits in step 6, or comes to it.
        assert steps[-len(second) :] == second
        assert steps[: -len(second)] in (before, before[:-1])
    (tmp_path / "undisturbed").mkdir()
    launch(train, 2, str(tmp_path / "undisturbed"), False)
    for rank in range(2):
        assert (tmp_path / f"end-{rank}").read_bytes() == (
            tmp_path / "undisturbed" / f"end-{rank}"
        ).read_bytes()


def test_what_cannot_be():
    with pytest.raises(ValueError, match=r"max_restarts is how often .* 1 or more; got 0"):
        restarting_command(train, 2, "folder", True, max_restarts=0)
