"""The same cell on a cluster: `launch(step, 8, nodes=2, cluster="slurm")`, or "ray".

What travels is what travels on one machine: the function and its arguments there; results, messages and printed lines
back. Between the notebook and the nodes lies a folder that both can read on Slurm, and actors on Ray; between the
nodes, a TCP store on the cluster's own network.

In this order:

settings.py    cluster.toml: what an instructor writes once
remote.py      launch(..., cluster=...), from the call to the Run
call.py        what the agents of a job are asked to do
folder.py      one job's private folder, and how a file in it is read while somebody writes it
node_ranks.py  that node's ranks
presence.py    the notebook is there; and no job of a launch outlives it
ends.py        signals of Slurm's, and a silent notebook: how a node's part of a job ends early
agent.py       what runs on a node: one process that imports torch once and splits off that node's ranks
task.py        what submitit calls there: agent.py or serving.py
rendezvous.py  where the agents and the ranks of several nodes meet
entry.py       what the batch script starts on each node: task.py's, from a folder that is ours alone
scheduler.py   what launch needs of a cluster: submit, ask, cancel, and a transport
slurm.py       Slurm's: submitting, on top of submitit; slurm_request.py is what a job asks for
shared_folder.py its transport: all nodes see the job's folder
station.py     which part of a job a process is
controller.py  asking Slurm and cancelling
serving.py     the same for an allocation: agents that take call after call
held.py        the notebook's side of one allocation
allocations.py which launch is given to which: `with cluster.allocation(nodes=2)`, and `keep = true`
job.py         the notebook's side: follow a job until its ranks have answered; record.py is what is known of one
ending.py      how a job's end is told
jobs.py        jobs of another notebook, or of yesterday
batch.py       jobs without a notebook: sweeps, and jobs that Slurm may start again
probe.py       what `dtcourse doctor --cluster` asks every node
kubernetes/    manifests for Kubernetes: an Indexed Job with its Service, or a TrainJob
ray.py         Ray's scheduler; ray_connection.py is Ray itself, ray_job.py one reservation with its actors
ray_actor.py   what runs on each of its nodes; ray_agent.py what that starts; ray_log.py what it says
throwaway.py   a real Slurm of several nodes on this machine, for tests, lessons and trying out
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def allocation(
    nodes: int = 1,
    idle_minutes: float | None = None,
    *,
    ranks_per_node: int | None = None,
    minutes: int | None = None,
    cluster: str = "slurm",
) -> Iterator[Any]:
    """Holds nodes of a cluster: launches in this block that name it start at once, without a job of their own.

        with cluster.allocation(nodes=2, idle_minutes=10):
            launch(step, 4, nodes=2, cluster="slurm")

    nodes:          as many as the largest launch needs; one that needs more gets a job of its own, which may have to
                    wait for these
    idle_minutes:   without a launch, after which the nodes are given back; None: cluster.toml's
    ranks_per_node: the most that a launch has on one node; None: cluster.toml's, else 4
    minutes:        for which the nodes are held at most; None: cluster.toml's keep_minutes
    cluster:        as launch takes it

    The nodes are asked for at once; the first launch waits for them. ValueError where the cluster refuses.
    """
    from dtcourse.launch import options
    from dtcourse.launch.cluster import allocations, remote

    settings = remote.find(cluster)
    each = ranks_per_node or settings.ranks_per_node or 4
    nodes = options.whole_number("nodes", nodes, "the number of nodes to hold")
    each = options.whole_number("ranks_per_node", each, "the most ranks of one node")
    idle = settings.idle_minutes if idle_minutes is None else idle_minutes
    if isinstance(idle, bool) or not isinstance(idle, int | float) or idle <= 0:
        raise ValueError(f"idle_minutes is a number above 0; got {idle!r}")
    held_for = settings.keep_minutes if minutes is None else minutes
    options.whole_number("minutes", held_for, "the minutes for which the nodes are held at most")
    with allocations.held(settings, nodes, each, idle, max(held_for, settings.minutes)) as held:
        yield held


def submit(
    function: Callable[..., Any],
    world_size: int = 2,
    /,
    *,
    nodes: int = 1,
    cluster: str = "slurm",
    minutes: int | None = None,
    signal: str | None = None,
    requeue: bool = False,
    sweep: Mapping[str, Sequence[Any]] | None = None,
    **kwargs: Any,
) -> Any:
    """Submits function(**kwargs) as a batch job, which goes on without the notebook; it may be defined in a cell.

        job = cluster.submit(train, 4, nodes=2, requeue=True, lr=0.1)
        job.state()                  # what Slurm says of it
        run = job.result()           # follows it; another notebook: `dtcourse jobs NUMBER`

    cluster: as launch takes it
    minutes, signal: its time limit, and the signal so long before it ("USR2@90"); None: cluster.toml's
    requeue: let Slurm end the job and start it again: the function then finds its own checkpoint
    sweep:   {argument: values}: a job for each combination of the values, and a list of them is returned
    More (backend, device, threads) as for launch.

    ValueError where the function cannot be called so, or Slurm refuses the job.
    """
    from dtcourse.launch.cluster import batch, jobs, remote

    settings = remote.find(cluster).with_limit(minutes, signal)
    submitted = batch.submit(
        function, world_size, settings, nodes=nodes, requeue=requeue, sweep=sweep, **kwargs
    )
    some = [jobs.Submitted(record, given, settings) for record, given in submitted]
    return some if sweep else some[0]


def release() -> str:
    """Gives back the nodes that this notebook holds (`%dtcourse release`). Says which."""
    from dtcourse.launch.cluster import allocations
    from dtcourse.plural import plural

    some = [
        f"job {one.record.job} ({plural(one.layout.nodes, 'node')})"
        for one in allocations.release()
    ]
    return f"given back: {', '.join(some)}" if some else "no nodes are held"
