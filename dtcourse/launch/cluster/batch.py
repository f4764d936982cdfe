"""Batch jobs: a function of a file, submitted and left alone. `dtcourse submit train.py:step --ranks 8`.

The same agents run it as a launch from a notebook, so it comes back the same way: `jobs.reattach(job)`. Unlike a
launch, Slurm may end such a job (its time limit, a job of higher priority, a node that dies) and start it again:
the function is called once more from its beginning, with the number of restarts in SLURM_RESTART_COUNT, and has to
find its own checkpoint.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dtcourse.launch import environment, options, rank, sendable
from dtcourse.launch.cluster import remote
from dtcourse.launch.cluster import scheduler as schedulers
from dtcourse.launch.cluster.record import Record
from dtcourse.launch.cluster.settings import Settings


def submit(
    function: Callable[..., Any],
    world_size: int,
    settings: Settings,
    /,
    *,
    nodes: int = 1,
    backend: str | None = None,
    device: str | None = None,
    threads: int = 1,
    requeue: bool = False,
    sweep: Mapping[str, Sequence[Any]] | None = None,
    **kwargs: Any,
) -> list[tuple[Record, dict[str, Any]]]:
    """Submits function(**kwargs) on `world_size` ranks; returns each job's record with the arguments it was given.

    sweep: {argument: values}: a job array with one job for each combination of the values
    requeue: let Slurm end the job and start it again

    ValueError where the function cannot be called so, or Slurm refuses the job.
    """
    if not schedulers.of(settings).OUTLIVES:
        raise ValueError(
            'on Ray a job ends with its notebook, so there are no batch jobs: launch(..., cluster="ray") runs the '
            "function, and `ray job submit` a script that calls it"
        )
    layout = remote.layout_on(settings, world_size, backend, device, nodes, threads)
    names = list(sweep or {})
    combinations = [
        {**kwargs, **dict(zip(names, values, strict=True))}
        for values in itertools.product(*(sweep or {}).values())
    ]
    if not combinations:
        raise ValueError("a sweep needs at least one value for each of its arguments")
    asked = rank.Settings(
        rank=0,
        environment={},
        backend=layout.backend,
        threads=threads,
        init=True,
        record=False,
        emulated=None,
        timeout=None,  # the job's own limit holds
        sources=environment.typed_sources(),
        rendezvous="",
    )
    name = getattr(function, "__name__", "function")
    call = remote.call_for(layout, settings, asked, requeued=requeue)
    folders = []
    for arguments in combinations:
        options.check_arguments(function, lambda: None, (), arguments)
        serialized = sendable.serialize_call(function, (), arguments)
        folders.append(remote.prepare(settings, name, call, serialized))
    records = remote.submit(settings, name, folders, call, requeue)
    return list(zip(records, combinations, strict=True))
