"""Slurm, as far as a launch needs it, on top of submitit: submit a job, ask for its state, cancel it.

submitit writes the batch script, numbers the tasks and knows how a job is requeued. It asks sacct for a job's state,
which works only where the cluster keeps accounts (slurmdbd), and that may be a minute behind: we ask the
controller itself.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

from dtcourse.launch.cluster.settings import Settings
from dtcourse.plural import plural

# A job in one of these will not do anything any more.
OVER = {
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
    "GONE",
}
# One thread while the agent imports, or it could not split off the ranks' server (server.start_within).
QUIET = "export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1"

A_DAY = 24 * 60  # minutes that a launch's job may wait where the settings set no limit

# Node 0's address, asked for before a container hides Slurm's commands (rendezvous.py reads it).
HEAD = (
    "export DTCOURSE_HEAD="
    "$(scontrol --oneliner show node $SLURMD_NODENAME | sed -n 's/.*NodeAddr=\\([^ ]*\\).*/\\1/p')"
)


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


def submit(
    folders: list[Path],
    tasks: list[Any],
    settings: Settings,
    name: str,
    nodes: int,
    ranks: int,
    requeue: bool = False,
    waits: bool = False,
) -> list[str]:
    """Submits one job for each folder (more than one: as a job array); each task runs once on each of its nodes.

    ranks: on one node
    requeue: let Slurm start a job again that it had to end, or whose node died
    waits: somebody waits for it, with the patience that the settings give; Slurm removes it when that is over

    Returns the jobs' numbers. ValueError where Slurm refuses what was asked.
    """
    executor = _executor(folders[0], settings, name, nodes, ranks, requeue, waits)
    try:
        if len(tasks) == 1:
            jobs = [executor.submit(tasks[0])]
        else:
            jobs = executor.submit_array(tasks)
    except Exception as error:
        raise ValueError(_refusal(error, settings)) from None
    return [job.job_id for job in jobs]


def _executor(
    folder: Path,
    settings: Settings,
    name: str,
    nodes: int,
    ranks: int,
    requeue: bool,
    waits: bool,
) -> Any:
    from submitit import SlurmExecutor

    executor = SlurmExecutor(
        folder, python=shlex.quote(settings.python) if settings.python else None
    )
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


def _refusal(error: Exception, settings: Settings) -> str:
    said = [line.strip() for line in str(error).splitlines() if "error" in line.lower()]
    text = said[-1].partition("error:")[2].strip() if said and "error:" in said[-1] else str(error)
    sentence = f"Slurm refused the job: {text}"
    if "partition" in text.lower():
        sentence += f". {settings.source} asks for {settings.partition!r}; this cluster has {', '.join(partitions())}"
    return sentence


def partitions() -> list[str]:
    """The names of the cluster's partitions."""
    return sorted({word.rstrip("*") for word in _ask("sinfo", "--noheader", "--format=%P").split()})


def nodes_up(partition: str | None) -> list[str]:
    """The nodes of a partition (None: of the default one) that take jobs."""
    shown = _ask("sinfo", "--noheader", "--Node", "--format=%N %P %t").splitlines()
    found = set()
    for line in shown:
        node, where, state = line.split()
        chosen = where.rstrip("*") == partition if partition else where.endswith("*")
        if chosen and state.rstrip("~#!%@^-") in ("idle", "mix", "alloc", "comp"):
            found.add(node)
    return sorted(found)


def state_of(job: str, comment: str) -> tuple[str, str, str]:
    """(state, its nodes or "", why it waits) of the job with that number and that comment.

    The state is "GONE" where Slurm has forgotten it, or means another job by that number now.
    """
    asked = ("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T|%N|%r|%k")
    shown = _ask(*asked).splitlines()
    if shown:
        state, nodes, reason, said = shown[-1].split("|", 3)
    else:  # squeue shows a job that is over for a while only
        fields = details("job", job)
        names = ("JobState", "NodeList", "Reason", "Comment")
        state, nodes, reason, said = (fields.get(name, "") for name in names)
    return (state, nodes, reason) if said == comment else ("GONE", "", "")


def details(kind: str, name: str) -> dict[str, str]:
    """What scontrol says of a job or a node, by its own field names; nothing of one that is not known."""
    words = _ask("scontrol", "--oneliner", "show", kind, name).split()
    return dict(word.split("=", 1) for word in words if "=" in word)


def lost_nodes(nodes: str) -> list[str]:
    """Those of a job's nodes that the cluster has lost."""
    shown = _ask("sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--format=%N %T").splitlines()
    return sorted(
        {
            line.split()[0]
            for line in shown
            if line.split()[1].rstrip("*$~#!%@^-").startswith("down")
        }
    )


def names(nodes: str) -> list[str]:
    """The single names in Slurm's short form: n[1-2] is n1, n2."""
    return _ask("scontrol", "show", "hostnames", nodes).split() if nodes else []


def cancel(job: str) -> None:
    """Asks Slurm to end a job; nothing where it has ended."""
    _ask("scancel", job)


def _ask(*command: str) -> str:
    """What the command prints; nothing where it fails, which it does for a job that is not known any more."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def describe(state: str, settings: Settings, job: str) -> str:
    """How a job ended, as a sentence's end."""
    if state == "TIMEOUT":
        return f"reached its time limit of {plural(settings.minutes, 'minute')} (`minutes` in cluster.toml)"
    if state == "OUT_OF_MEMORY":
        return "used more memory than it had asked for (`memory_per_node` in cluster.toml)"
    if state == "DEADLINE":
        return "was removed by Slurm, since it had waited too long to end before its deadline"
    if state == "CANCELLED":
        return "was cancelled"
    if state == "PREEMPTED":
        return "was ended for a job of higher priority"
    if state == "NODE_FAIL":
        return "lost a node"
    if state == "GONE":
        return f"is not known to Slurm any more (squeue --jobs={job})"
    return f"ended with state {state}"
