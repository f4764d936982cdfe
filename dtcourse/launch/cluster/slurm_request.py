"""What a job asks Slurm for: submitit's executor, and the options of sbatch and srun."""

from __future__ import annotations

import math
import os
import shlex
from pathlib import Path
from typing import Any

from dtcourse.launch.cluster.settings import Settings

ENTRY = "dtcourse.launch.cluster.entry"
# One thread while the agent imports, or it could not split off the ranks' server (server.start_within).
QUIET = (
    "export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 "
    # Without it each rank says which addresses have no name (c10d), where the network has no reverse DNS.
    "TORCH_CPP_LOG_LEVEL=${TORCH_CPP_LOG_LEVEL:-ERROR}"
)

A_DAY = 24 * 60  # minutes that a launch's job may wait where the settings set no limit

# Node 0's address, asked for before a container hides Slurm's commands (rendezvous.py reads it).
HEAD = (
    "export DTCOURSE_HEAD="
    "$(scontrol --oneliner show node $SLURMD_NODENAME | sed -n 's/.*NodeAddr=\\([^ ]*\\).*/\\1/p')"
)


def executor(
    folder: Path,
    settings: Settings,
    name: str,
    nodes: int,
    ranks: int,
    requeue: bool,
    waits: bool,
) -> Any:
    """submitit's, with what such a job asks for.

    ranks:   on one node
    requeue: let Slurm start a job again that it had to end, or whose node died
    waits:   somebody waits for it, with the patience that the settings give; Slurm removes it when that is over
    """
    from submitit import SlurmExecutor

    class Executor(SlurmExecutor):
        """Whose jobs begin with our own main, which reads nothing from a folder that others could have written."""

        @property
        def _submitit_command_str(self) -> str:
            # -P: the working folder, where others may write, is no place to import from.
            return f"{self.python} -P -u -m {ENTRY} {shlex.quote(str(self.folder))}"

    executor = Executor(folder, python=shlex.quote(settings.python) if settings.python else None)
    setup = [*_loaded(settings.modules), *settings.setup, QUIET]
    # What a shell exported once would lead the ranks astray; the agents say where they meet.
    setup.append("unset MASTER_ADDR MASTER_PORT RANK WORLD_SIZE LOCAL_RANK")
    extra: dict[str, Any] = {"requeue" if requeue else "no-requeue": True}
    extra["signal"] = "{}@{:d}".format(*settings.warning)
    if waits:
        # Where nobody is left to cancel it: no job that starts later could still end by then.
        patience = math.ceil(settings.wait_minutes or A_DAY) + settings.minutes
        extra["deadline"] = f"now+{patience}minutes"
    contained = settings.container is not None
    extra |= {
        name: value
        for name, value in settings.options.items()
        if not (contained and _of_container(name))
    }
    # One node's end is all nodes' end: the others would wait for its ranks.
    srun_args = ["--kill-on-bad-exit=1", *_contained(settings)]
    if contained:
        setup.append(HEAD)
    asked = {
        "job_name": name,
        "comment": folder.name,
        "partition": settings.partition,
        "account": settings.account,
        "time": settings.minutes,
        "nodes": nodes,
        "ntasks_per_node": 1,
        "cpus_per_task": settings.cpus_per_rank * ranks,
        "gpus_per_node": settings.gpus_per_node or None,
        "mem": None
        if settings.memory_per_node is None
        else f"{round(settings.memory_per_node * 1024)}M",
        "setup": setup,
        "srun_args": srun_args,
        "additional_parameters": extra,
    }
    executor.update_parameters(**{key: value for key, value in asked.items() if value is not None})
    return executor


def _loaded(modules: list[str]) -> list[str]:
    """Lines of shell that load environment modules, or end the job with a sentence."""
    if not modules:
        return []
    # A batch script is no login shell: it has `module` only where the notebook's shell had exported it.
    lines = ['type module > /dev/null 2>&1 || . "$MODULESHOME/init/bash"']
    for module in modules:
        sentence = f"`module load {module}` failed (`modules` in cluster.toml)"
        lines.append(
            f"module load {shlex.quote(module)} || {{ echo {shlex.quote(sentence)} >&2; exit 1; }}"
        )
    return lines


def _contained(settings: Settings) -> list[str]:
    """srun's options for a container, as pyxis reads them; the job's folder and this one are seen inside.

    They are srun's and not sbatch's: pyxis would run the batch script itself in the container, where no srun is.
    """
    if not settings.container:
        return []
    seen = [os.path.abspath(os.path.expanduser(settings.folder)), os.getcwd()]
    mounts = [f"{folder}:{folder}" for folder in dict.fromkeys(seen)]
    options = {name: value for name, value in settings.options.items() if _of_container(name)}
    if "container-mounts" in options:
        mounts.append(options.pop("container-mounts"))
    asked = {"container-image": settings.container, "container-mounts": ",".join(mounts), **options}
    return [f"--{name}" if value is True else f"--{name}={value}" for name, value in asked.items()]


def _of_container(option: str) -> bool:
    return option.startswith(("container-", "no-container-"))


def asked_by_hand(settings: Settings) -> list[str]:
    """What a command of Slurm's (srun, sbatch) that somebody types has to say for a job to be taken on this cluster."""
    named = {
        "partition": settings.partition,
        "account": settings.account,
        "time": settings.minutes,
        **{name: value for name, value in settings.options.items() if not _of_container(name)},
    }
    return [
        f"--{name}" if value is True else f"--{name}={value}"
        for name, value in named.items()
        if value is not None
    ]
