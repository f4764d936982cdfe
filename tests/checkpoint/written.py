"""What a run leaves on the disk, small: for tests that read what another Python or PyTorch has written.

    python -m tests.checkpoint.written        # writes written/python-3.13.0-torch-2.13.0 beside this file, of this one

A model with its optimizer in parts (an index, tensors, small values), and a rank's random states.
"""

from __future__ import annotations

import os
import platform
import random
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dtcourse import launch
from dtcourse.fault_tolerance.checkpoints import Checkpoints
from dtcourse.fault_tolerance.random_states import RandomStates
from dtcourse.fault_tolerance.training_state import TrainingState

HERE = Path(__file__).parent
WRITTEN = HERE / "written"
STEP, LR, SEED = 3, 0.25, 7


def own_name() -> str:
    """The folder of this Python and this PyTorch."""
    return f"python-{platform.python_version()}-torch-{torch.__version__.partition('+')[0]}"


def run() -> tuple[nn.Module, torch.optim.Optimizer, TrainingState]:
    """A run that begins: zeros for weights, and another learning rate than what is written has."""
    model = nn.Linear(2, 2, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    return model, optimizer, TrainingState.of(model, optimizer, own={"random": RandomStates()})


def write(folder: str) -> None:
    """Whole numbers for weights, one step of momentum; the random numbers of a seed."""
    model, optimizer, state = run()
    model.weight.grad = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    optimizer.step()
    optimizer.param_groups[0]["lr"] = LR
    random.seed(SEED)
    torch.manual_seed(SEED)
    Checkpoints(folder).save(STEP, state.snapshot(), state.about())


def read(folder: str) -> dict[str, Any]:
    """What a new run has of it."""
    model, optimizer, state = run()
    found = Checkpoints(folder).latest()
    assert found is not None, f"no complete checkpoint in {folder}"
    step = state.load(found)
    [buffers] = optimizer.state.values()
    return {
        "step": step,
        "weight": model.weight.tolist(),
        "momentum": buffers["momentum_buffer"].tolist(),
        "lr": optimizer.param_groups[0]["lr"],
        "drawn": (random.random(), torch.rand(()).item()),
    }


def expected() -> dict[str, Any]:
    """The same, as it was written."""
    random.seed(SEED)
    drawn = (random.random(), torch.rand((), generator=torch.Generator().manual_seed(SEED)).item())
    weight, momentum = [[-1.0, -2.0], [-3.0, -4.0]], [[1.0, 2.0], [3.0, 4.0]]
    return {"step": STEP, "weight": weight, "momentum": momentum, "lr": LR, "drawn": drawn}


if __name__ == "__main__":
    os.chdir(HERE)  # the index keeps the folder's name as it is given: nothing of this machine
    launch(write, 1, f"{WRITTEN.name}/{own_name()}")
