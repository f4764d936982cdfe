"""Under torchrun a worker is killed: all are started again, and go on from the checkpoint with the same bits; or at
another size, with the same state and the same samples.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import launch
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.fault_tolerance import BucketLayout, Checkpoints, RandomStates, TrainingState
from dtcourse.fault_tolerance.elastic import restarting_command, resume, start_number
from dtcourse.parameters.whole import full_state_dict
from dtcourse.verify import compare
from tests.fault_tolerance.test_resume_elsewhere import Run

ROOT = Path(__file__).resolve().parents[2]
SAVED, DIES, LAST = 4, 6, 8


def train(folder, kills):
    """Rank 1 is killed in step 6, once. Each step of each start is in FOLDER/log-RANK."""
    killed = Path(folder) / "killed"
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
            if kills and (step, rank) == (DIES, 1) and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            model(torch.ones(3, 4)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % SAVED == 0:
                checkpoints.save(step, state.snapshot(), state.about())
    bits = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
    (Path(folder) / f"end-{rank}").write_bytes(bits)
    return


def under_torchrun(folder, function, ranks, *args):
    """Runs it, with its restarts: more than it needs, as on a busy machine a start may fail before its first step."""
    command = restarting_command(
        function, ranks, *args, max_restarts=3, save_to=folder / "train.pkl"
    )
    names = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "MASTER_", "SLURM_", "TORCHELASTIC_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    done = subprocess.run(
        command, shell=True, cwd=folder, env=clean | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.stands_on("dtcourse/fault_tolerance/", "dtcourse/launch/")
def test_a_killed_worker_has_all_start_again_from_the_checkpoint(tmp_path):
    under_torchrun(tmp_path, train, 2, str(tmp_path), True)
    for rank in range(2):
        steps = defaultdict(list)
        for one in (tmp_path / f"log-{rank}").read_text().split():
            start, step = map(int, one.split(":"))
            steps[start].append(step)
        before, after = steps.values()
        # Rank 0 is ended while it waits in step 6, or comes to it.
        assert before in ([*range(1, DIES + 1)], [*range(1, DIES)])
        assert after == [*range(SAVED + 1, LAST + 1)]
    (tmp_path / "undisturbed").mkdir()
    launch(train, 2, str(tmp_path / "undisturbed"), False)
    for rank in range(2):
        assert (tmp_path / f"end-{rank}").read_bytes() == (
            tmp_path / "undisturbed" / f"end-{rank}"
        ).read_bytes()


def at_any_size(folder, name):
    """Begins, and saves after two steps, or goes on from there. Then three more: FOLDER/NAME-RANK has them."""
    run, folder = Run("fully_shard", seed=7 if name == "again" else 0), Path(folder)
    checkpoints = Checkpoints(folder / "checkpoints")
    first = resume(checkpoints, run.state)
    if not first:
        run.train(2)
        checkpoints.save(2, run.state.snapshot(), run.state.about())
    state = full_state_dict(run.model)
    torch.save([first, state, *run.train(3)], folder / f"{name}-{dist.get_rank()}")


@pytest.mark.stands_on("dtcourse/fault_tolerance/", "dtcourse/launch/")
def test_under_torchrun_all_start_again_at_another_size(tmp_path):
    """A node is lost, and the job is started with the ranks that are left: three, and then two."""
    for name, ranks in (("once", 3), ("again", 2)):
        under_torchrun(tmp_path, at_any_size, ranks, str(tmp_path), name)
    first, saved, losses, read = torch.load(tmp_path / "once-0")
    assert first == 0
    for rank in range(2):
        step, state, losses_here, read_here = torch.load(tmp_path / f"again-{rank}")
        assert step == 2
        compare(state, saved, 0.0, "value")
        assert read_here == read, "the same samples in the same steps"
        assert losses_here == pytest.approx(losses, rel=1e-10)
    assert not (tmp_path / "again-2").exists()


def test_what_cannot_be():
    with pytest.raises(ValueError, match=r"max_restarts is how often .* 1 or more; got 0"):
        restarting_command(train, 2, "folder", True, max_restarts=0)
