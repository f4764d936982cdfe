"""Ray as a cluster: `launch(step, 8, cluster="ray")`. A scheduler (scheduler.py) whose nodes share no folder.

One placement group reserves all CPUs and GPUs at once or not at all, a bundle for each node; in each bundle lives an
actor (ray_job.py, ray_actor.py), which starts the same agent that a node of Slurm's runs, with that node's ranks. What
the agents say comes back in the answers of the actors (ray_log.py). Ray ends actors and reservation with the notebook.

    RAY_ADDRESS=10.0.0.1:6379 jupyter lab       # without it, the cluster that runs on this machine

The ranks find what they find on Slurm: torchrun's variables, a group that is formed, their printed lines and messages
on the way back. nodes=1, which is also the default, takes as few nodes as have room for all ranks.

What cannot be had, and is refused with a sentence: Ray's client (ray://...); batch jobs, `dtcourse jobs` and
allocations (`keep`), since an actor does not outlive its notebook; in cluster.toml, what is Slurm's alone (NOT_RAYS);
more ranks than the machines of the cluster have CPUs for now (it may grow by itself, and is not asked to).

What is otherwise than on Slurm: a rank gets the environment of Ray's worker and `env=`, not the notebook's; where its
machine has no such folder as the notebook's, it works in one that all ranks of this machine share, and a function of a
file must be installed there; no signal comes before the end, neither at `minutes` nor at a cancellation.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

from dtcourse.launch.cluster import ray_connection
from dtcourse.launch.cluster.call import Call, Hold
from dtcourse.launch.cluster.ray_job import RayJob
from dtcourse.launch.cluster.settings import Settings
from dtcourse.plural import plural

NAME, SHARES, OUTLIVES = "Ray", False, False  # scheduler.py says what for
OVER = {"CANCELLED", "COMPLETED", "FAILED", "TIMEOUT", "GONE"}
NOT_RAYS = (
    *("partition", "account", "signal", "keep", "container", "modules", "setup", "python"),
    "options",
)

_jobs: dict[str, RayJob] = {}  # of this process, by their numbers


def require() -> None:
    """ImportError where there is no Ray, RuntimeError where it reaches no cluster."""
    ray_connection.connected()


def nodes_for(settings: Settings, world_size: int, nodes: int) -> int:
    """As few nodes as have room for all ranks, or as many as asked. ValueError where there is no such room."""
    _check(settings)
    return ray_connection.nodes_for(ray_connection.connected(), settings, world_size, nodes)


def _check(settings: Settings) -> None:
    usual = {field.name: getattr(Settings(), field.name) for field in fields(Settings)}
    for name in NOT_RAYS:
        if getattr(settings, name) != usual[name]:
            raise ValueError(
                f"{settings.source}: {name} is Slurm's, and Ray has no such thing: leave it out"
            )


def submit(
    folders: list[Path], call: Call | Hold, settings: Settings, name: str, requeue: bool = False
) -> list[str]:
    """Asks for a placement group with its actors. They wait for it, and so does who follows the job."""
    if isinstance(call, Hold) or len(folders) > 1 or requeue:
        raise ValueError(
            f"{settings.source}: on Ray a job ends with its notebook, and holds no nodes"
        )
    try:
        job = RayJob(ray_connection.connected(), folders[0], call, settings)
    finally:
        # Ray has what was in it, or never will. A notebook that is killed would leave it.
        shutil.rmtree(folders[0], ignore_errors=True)
    _jobs[job.number] = job
    return [job.number]


@contextmanager
def attend(folder: Path, job: str) -> Iterator[None]:
    """Until the block ends; then nothing of the job is left."""
    try:
        yield
    finally:
        cancel(job)
        _jobs.pop(job, None)


def transport(folder: Path, job: str, agents: int) -> RayJob:
    """The job itself carries what is said."""
    return _jobs[job]


def state_of(job: str, comment: str) -> tuple[str, str, str]:
    """(state, its nodes, why it waits)."""
    one = _jobs.get(job)
    if one is None:
        return "GONE", "", ""
    one.advance()
    return one.state, ",".join(one.where()), _reason(one) if one.state == "PENDING" else ""


def _reason(job: RayJob) -> str:
    if job.is_reserved():
        return "its actors are starting"
    ray = job.ray
    free, has = ray.available_resources().get("CPU", 0), ray.cluster_resources().get("CPU", 0)
    return f"{free:g} of {plural(int(has), 'CPU')} are free"


def never_starts(job: str, nodes: int, reason: str) -> str:
    """Where machines have left meanwhile."""
    one = _jobs.get(job)
    if one is None or one.is_reserved():
        return ""
    found = ray_connection.nodes(one.ray)
    if ray_connection.have_room(found, one.settings, one.call.layout.world_size, nodes):
        return ""
    return (
        f"the cluster has become smaller, and has no room for its {plural(nodes, 'node')} any more"
    )


def describe(state: str, settings: Settings, job: str) -> str:
    """How a job ended, as a sentence's end."""
    if state == "TIMEOUT":
        return f"reached its time limit of {plural(settings.minutes, 'minute')} (`minutes` in cluster.toml)"
    if state == "GONE":
        return "is not one of this notebook's"
    return "was cancelled" if state == "CANCELLED" else f"ended with state {state}"


def missing(settings: Settings, folder: Path, log: str) -> str:
    """What to do about agents that ended before they said a word. log: what they wrote."""
    if log and "No module named" not in log:
        return ""
    return "\nEach of the cluster's machines needs the course in the Python that runs Ray there"


def node_names() -> list[str]:
    """The machines that live."""
    return [node.name for node in ray_connection.nodes(ray_connection.connected())]


def lost_nodes(job: str, nodes: str) -> list[str]:
    """Those of a job's nodes that are lost, whether Ray has missed them yet or not."""
    return _jobs[job].lost() if job in _jobs else []


def cancel(job: str) -> None:
    """Ends a job; nothing where it has ended."""
    if job in _jobs:
        _jobs[job].end("CANCELLED")
