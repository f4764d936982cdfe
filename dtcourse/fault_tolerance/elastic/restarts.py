r"""Under torchrun there is no next generation: when a worker dies all are ended, and started again from a file.

    torchrun --standalone --nproc-per-node 2 --max-restarts 3 train.py        # one node: as many workers again
    torchrun --nnodes 1:4 --nproc-per-node 8 --max-restarts 3 \
        --rdzv-backend c10d --rdzv-endpoint HOST:29500 train.py               # a node lost: fewer, after a while

    def main():                                                # train.py, run anew in each start
        run = build()
        last_done = resume(checkpoints, state)                 # 0 in the first start
        for step in range(last_done + 1, last + 1):
            ...
            if step % every == 0:
                checkpoints.save(step, state.snapshot(), state.about())

torchrun's agent watches its workers. One that ends otherwise than with 0 has it end the others by SIGTERM (later by
SIGKILL), meet the agents of the other nodes again, and start all anew, with RANK and WORLD_SIZE as they are now. A
worker has nothing from before: not its memory, not its group. So nobody needs to be woken, and what was done since the
last checkpoint is done again.

                            elastic here (worker.py)                torchrun
    who survives            keeps process, memory, imports          is ended
    state from              a survivor's memory                     the newest checkpoint
    steps lost              the one that was interrupted            those since the checkpoint
    new size                whoever is there                        nodes that are there, --nnodes=MIN:MAX

Source: https://docs.pytorch.org/docs/stable/elastic/run.html.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dtcourse.fault_tolerance.checkpoints import Checkpoints
from dtcourse.fault_tolerance.training_state import TrainingState
from dtcourse.launch import torchrun_command

# Each start has a store of its own: in a shared one gloo may find the addresses of the ranks that have left.
OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"


def resume(checkpoints: Checkpoints, state: TrainingState) -> int:
    """Loads the newest complete checkpoint, if there is one; returns the step after which it was taken, else 0.

    Every rank calls it, in each start: on whatever number of ranks there is now.
    """
    found = checkpoints.latest()
    return state.load(found) if found else 0


def start_number() -> int:
    """How often torchrun has started the workers anew by now: 0 in the first start, and outside of torchrun."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


def restarting_command(
    function: Callable[..., Any],
    world_size: int,
    /,
    *args: Any,
    max_restarts: int,
    save_to: str | Path | None = None,
    **kwargs: Any,
) -> str:
    """The torchrun command that runs function(*args, **kwargs) and starts all ranks again when one has died.

    max_restarts: how often; then the job fails.  As launch.torchrun_command; in a notebook, `!{command}` runs it
    """
    if isinstance(max_restarts, bool) or not isinstance(max_restarts, int) or max_restarts < 1:
        raise ValueError(
            f"max_restarts is how often all ranks are started again, 1 or more; got {max_restarts!r}"
        )
    command = shlex.split(torchrun_command(function, world_size, *args, save_to=save_to, **kwargs))
    at = command.index("--standalone")
    command[at + 1 : at + 1] = ["--max-restarts", str(max_restarts)]
    return f"env {OWN_STORE} {shlex.join(command)}"
