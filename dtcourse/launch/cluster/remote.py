"""launch(..., cluster=...): the same call, its ranks on the nodes of a cluster."""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dtcourse.launch import failures, options, output, rank, serialization
from dtcourse.launch.cluster import call as words
from dtcourse.launch.cluster import presence
from dtcourse.launch.cluster import scheduler as schedulers
from dtcourse.launch.cluster import settings as clusters
from dtcourse.launch.cluster.call import Call, Hold
from dtcourse.launch.cluster.folder import Writer, cannot_be_written, create
from dtcourse.launch.cluster.job import Job
from dtcourse.launch.cluster.record import Record
from dtcourse.launch.cluster.settings import Settings
from dtcourse.launch.interrupts import Stop
from dtcourse.launch.run import Run


def layout_on(
    settings: Settings,
    world_size: Any,
    backend: str | None,
    device: str | None,
    nodes: Any,
    threads: Any,
) -> options.Layout:
    """How the ranks lie on the cluster's nodes; ValueError where they cannot.

    NCCL where each rank has a GPU of its own, else gloo.
    """
    world_size, nodes, threads = options.whole_numbers(world_size, nodes, threads)
    nodes = schedulers.of(settings).nodes_for(settings, world_size, nodes)
    gpus = settings.gpus_per_node
    usual, none = "cuda" if gpus else "cpu", f"{settings.source} has gpus_per_node = 0"
    kind = options.device_kind(device, gpus, usual, none)
    most = -(-world_size // nodes)  # ranks of one node
    own_gpu = kind == "cuda" and most <= gpus
    if backend == "nccl" and not own_gpu:
        raise ValueError(
            f'backend="nccl" needs a GPU for every rank: {most} ranks per node, {gpus} GPUs '
            f"({settings.source})"
        )
    return options.Layout(
        world_size=world_size,
        nodes=nodes,
        kind=kind,
        gpus=gpus * nodes if kind == "cuda" else 0,
        backend=options.known_backend(backend) or ("nccl" if own_gpu else "gloo"),
        threads=threads,
    )


def call_for(layout: options.Layout, settings: Settings, asked: rank.Settings, **more: Any) -> Call:
    """What the agents are asked to do, with what they need to know of this process."""
    scheduler = schedulers.of(settings)
    return Call(
        layout,
        asked,
        os.getcwd(),
        own_path(),
        settings.interface,
        warning=settings.warning,
        shares=scheduler.SHARES,
        **more,
    )


def own_path() -> list[str]:
    """sys.path, for a process that is somewhere else."""
    return [os.path.abspath(folder) for folder in sys.path]


def prepare(
    settings: Settings, name: str, call: Call, serialized: serialization.Serialized
) -> Path:
    """A new folder with all that the nodes of one job need."""
    folder = create(Path(settings.folder), name)
    fill(folder, call, serialized)
    return folder


def fill(folder: Path, call: Call, serialized: serialization.Serialized) -> None:
    """Writes into a new folder what the nodes of one call need. Where it has no room the folder goes again."""
    try:
        writer = Writer(folder / words.CALL)
        writer.write(call)
        stream, buffers = serialized
        writer.write((stream, [pickle.PickleBuffer(buffer) for buffer in buffers]))
        for number in range(len(call.parts)):
            (folder / words.log_name(number)).touch(mode=0o600)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise cannot_be_written(folder.parent, error) from None


def submit(
    settings: Settings, name: str, folders: list[Path], call: Call | Hold, requeue: bool = False
) -> list[Record]:
    """Hands the prepared jobs to the cluster, and writes down their numbers. What is refused leaves no folder."""
    scheduler = schedulers.of(settings)
    try:
        numbers = scheduler.submit(folders, call, settings, name, requeue)
    except ValueError:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    if scheduler.OUTLIVES:
        clusters.remember(settings)
    records = []
    for folder, number in zip(folders, numbers, strict=True):
        record = Record(
            number,
            folders[0].name,
            name,
            time.time(),
            asdict(call.layout),
            call.asked.record if isinstance(call, Call) else False,
            settings.minutes,
            os.path.abspath(settings.source) if os.path.isfile(settings.source) else "",
        )
        records.append(record)
        if not scheduler.OUTLIVES:
            continue
        try:
            record.write(folder)
        except OSError as error:
            scheduler.cancel(number)
            raise cannot_be_written(folder.parent, error) from None
    return records


def run_once(
    settings: Settings,
    layout: options.Layout,
    name: str,
    asked: rank.Settings,
    serialized: serialization.Serialized,
    on_line: Callable[[int, str], None] | None,
    on_message: Callable[[int, Any], None] | None,
    stop: Stop | None = None,
) -> Run[Any]:
    """One launch on the cluster, from its submission to what came back. stop: ends it from another thread."""
    scheduler = schedulers.of(settings)
    patience = presence.PATIENCE if scheduler.OUTLIVES else None
    call = call_for(layout, settings, asked, patience=patience)
    folder = prepare(settings, name, call, serialized)
    (record,) = submit(settings, name, [folder], call)
    with scheduler.attend(folder, record.job):
        job = Job(folder, record, settings, on_line, on_message)
        job.stop = stop
        return run_of(job, on_line is not None, slowdown_of(asked))


def slowdown_of(asked: rank.Settings) -> float:
    """The factor by which everything is emulated slower."""
    return 1.0 if asked.emulated is None else asked.emulated.slowdown


def run_of(job: Job, shown: bool, slowdown: float = 1.0) -> Run[Any]:
    """Follows a job and makes a Run of what its ranks answered. shown: somebody takes the lines as they come."""
    try:
        answers = job.answers()
    finally:
        if not shown:
            output.show(job.lines)
    for answer in answers:
        if isinstance(answer, failures.RankFailure):
            answer.__cause__ = answer.failures[0].exception
    return Run(answers, job.lines, job.layout, job.record.record, slowdown)


def find(cluster: str) -> Settings:
    """The settings of the cluster, and the certainty that there is one."""
    settings = clusters.find(cluster)
    schedulers.of(settings).require()
    return settings
