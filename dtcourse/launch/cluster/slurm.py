"""Slurm, as far as a launch needs it, on top of submitit: submit a job, ask for its state, cancel it.

submitit writes the batch script, numbers the tasks and knows how a job is requeued. It asks sacct for a job's state,
which works only where the cluster keeps accounts (slurmdbd), and that may be a minute behind: we ask the
controller itself.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from dtcourse.launch.cluster import folder as jobs_folder
from dtcourse.launch.cluster.call import Call, Hold
from dtcourse.launch.cluster.controller import (
    OVER,
    cancel,
    describe,
    details,
    lost_nodes,
    names,
    never_starts,
    nodes_out,
    nodes_up,
    partitions,
    state_of,
    waiting_or_running,
)
from dtcourse.launch.cluster.presence import Presence
from dtcourse.launch.cluster.settings import Settings
from dtcourse.launch.cluster.shared_folder import SharedFolder
from dtcourse.launch.cluster.slurm_request import asked_by_hand, executor
from dtcourse.launch.cluster.task import Agent

__all__ = [
    "NAME",
    "OUTLIVES",
    "OVER",
    "SHARES",
    "asked_by_hand",
    "attend",
    "cancel",
    "describe",
    "details",
    "lost_nodes",
    "missing",
    "names",
    "never_starts",
    "nodes_for",
    "nodes_out",
    "nodes_up",
    "partitions",
    "require",
    "state_of",
    "submit",
    "transport",
    "waiting_or_running",
]

NAME, SHARES, OUTLIVES = "Slurm", True, True  # scheduler.py says what for


def require() -> None:
    """RuntimeError where there is no Slurm to submit to."""
    missing = [
        name
        for name in ("sbatch", "srun", "squeue", "scontrol", "scancel")
        if not shutil.which(name)
    ]
    if missing:
        raise RuntimeError(
            f"there is no Slurm here ({', '.join(missing)} not found): start the notebook on a login node of the "
            "cluster, or leave out cluster= to run on this machine"
        )
    try:
        import submitit  # noqa: F401
    except ImportError:
        raise ImportError(
            "cluster= needs the package submitit: pip install 'dtcourse[cluster]'"
        ) from None


def nodes_for(settings: Settings, world_size: int, nodes: int) -> int:
    """The nodes to ask for; Slurm itself says later whether it has them."""
    return settings.nodes_for(world_size, nodes)


def attend(folder: Path, job: str) -> Presence:
    """For as long as the block lasts, this process is there for the job."""
    return Presence(folder, job)


def transport(folder: Path, job: str, agents: int) -> SharedFolder:
    """All nodes see the folder."""
    return SharedFolder(folder, agents)


def missing(settings: Settings, folder: Path, log: str) -> str:
    """What to do about nodes that ended before they said a word. log: what they wrote."""
    if re.search("ImportError|ModuleNotFoundError|No module named", log):
        return (
            "\nThe Python on the nodes is not the course's own: `python` in cluster.toml names it"
        )
    if log:
        return ""
    return (
        f" into {folder}. Most often they do not share that folder with the notebook, or have no "
        f"{settings.python or 'Python where the notebook has it'}: "
        "set `folder` and `python` in cluster.toml, and try `dtcourse doctor --cluster slurm`"
    )


def submit(
    folders: list[Path],
    call: Call | Hold,
    settings: Settings,
    name: str,
    requeue: bool = False,
) -> list[str]:
    """Submits one job for each folder (more than one: as a job array); its task runs once on each of its nodes.

    requeue: let Slurm start a job again that it had to end, or whose node died

    Returns the jobs' numbers. ValueError where Slurm refuses what was asked.
    """
    layout = call.layout
    tasks = [Agent(str(folder), isinstance(call, Hold)) for folder in folders]
    # Somebody waits for it, with the patience that the settings give; Slurm removes it when that is over.
    waits = call.patience is not None
    made = executor(folders[0], settings, name, layout.nodes, layout.ranks_per_node, requeue, waits)
    try:
        if len(tasks) == 1:
            jobs = [made.submit(tasks[0])]
        else:
            jobs = made.submit_array(tasks)
    except OSError as error:  # in writing what Slurm is to be given
        raise jobs_folder.cannot_be_written(Path(settings.folder), error) from None
    except Exception as error:
        raise ValueError(_refusal(error, settings)) from None
    return [job.job_id for job in jobs]


def _refusal(error: Exception, settings: Settings) -> str:
    said = [line.partition("error:")[2].strip() for line in str(error).splitlines()]
    text = ". ".join(filter(None, said)) or str(error)
    sentence = f"Slurm refused the job: {text}"
    if "begin" in settings.options and "deadline" in text.lower():
        sentence += (
            f". {settings.source} has it begin at {settings.options['begin']}, later than a launch waits for it: "
            "raise `wait_minutes` there, or send it with `dtcourse submit`"
        )
    if "partition" in text.lower():
        sentence += f". {settings.source} asks for {settings.partition!r}; this cluster has {', '.join(partitions())}"
    return sentence
