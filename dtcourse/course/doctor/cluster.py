"""What a cluster can run, found by a small job on its nodes: `dtcourse doctor --cluster slurm`, or `ray`."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import dtcourse
from dtcourse.course.doctor.findings import GB, Finding
from dtcourse.launch import launch, waiting
from dtcourse.launch.cluster import folder, ray, slurm
from dtcourse.launch.cluster import scheduler as schedulers
from dtcourse.launch.cluster import settings as clusters
from dtcourse.launch.cluster.probe import probe
from dtcourse.plural import plural

# Seconds by which nodes' clocks may differ: events and failures are put in order by them.
CLOCKS = 0.5
MOST = 16  # nodes that are tried where nobody says how many


def examine(cluster: str, nodes: int | None = None) -> Iterator[Finding]:
    """Tries the cluster with a job of one rank on each of `nodes` nodes (None: all that are up, at most MOST)."""
    settings = clusters.find(cluster)
    yield Finding("settings", "ok", settings.source)
    scheduler = schedulers.of(settings)
    try:
        scheduler.require()
    except (RuntimeError, ImportError) as error:
        yield Finding(scheduler.NAME, "problem", str(error))
        return
    try:
        yield Finding("jobs' folder", "ok", str(folder.of_jobs(Path(settings.folder))))
    except ValueError as error:
        yield Finding("jobs' folder", "problem", str(error))
        return
    if scheduler.NAME == "Ray":
        up, advice = ray.node_names(), "`ray status` shows why"
    else:
        yield from _shared(Path(settings.source))
        up, advice = slurm.nodes_up(settings.partition), "sinfo shows why; name another `partition`"
    asked = nodes or min(len(up), MOST)
    if not up:
        yield Finding(scheduler.NAME, "problem", "no node is up", advice)
        return
    yield Finding(scheduler.NAME, "ok", f"{plural(len(up), 'node')} up: {', '.join(up[:8])}")
    if scheduler.NAME == "Slurm":
        yield from _out(settings.partition)
    try:
        with waiting.saying(f"running a job on {plural(asked, 'node')}"):
            run = launch(probe, asked, nodes=asked, cluster=cluster, timeout=300)
    except (RuntimeError, ValueError) as error:
        yield Finding("job", "problem", str(error).strip())
        return
    yield Finding(
        "job", "ok", f"{plural(asked, 'node')} met and answered in {run.total_seconds:.1f} s"
    )
    for found in run:
        gpus = f"{len(found['gpus'])} x {found['gpus'][0]}" if found["gpus"] else "no GPU"
        said = (
            f"Python {found['python']}, torch {found['torch']}, {plural(found['cores'], 'core')}, "
            f"{found['memory'] / GB:.0f} GB, {gpus}, interface {found['interface']}"
        )
        few = len(found["gpus"]) < settings.gpus_per_node
        advice = f"gpus_per_node = {settings.gpus_per_node} in {settings.source}" if few else ""
        yield Finding(found["node"], "problem" if few else "ok", said, advice)
    clocks = [found["clock"] for found in run]
    apart = max(clocks) - min(clocks)
    yield Finding(
        "clocks",
        "ok" if apart < CLOCKS else "note",
        f"{apart * 1000:.0f} ms apart",
        ""
        if apart < CLOCKS
        else "timelines of several nodes will not line up: run a time service (chrony)",
    )
    if asked > 1:
        slowest = min(found["megabytes_per_second"] for found in run)
        yield Finding("network", "ok", f"an all-reduce of 16 MB moves {slowest:,.0f} MB/s")


def _out(partition: str | None) -> Iterator[Finding]:
    """Nodes that take no jobs."""
    for name, state in list(slurm.nodes_out(partition).items())[:MOST]:
        advice = "launches that need it wait: `scontrol show node` says more, your administrator brings it back"
        yield Finding("Slurm", "note", f"{name} is {state}", advice)


def _shared(settings: Path) -> Iterator[Finding]:
    """Whether those who can read the settings can run this Python and the course: they would be a class."""
    if not settings.is_file() or closed_to_others(settings):
        return
    for what, path in (("Python", Path(sys.executable)), ("course", Path(dtcourse.__file__))):
        if closed := closed_to_others(path):
            mode = stat.S_IMODE(closed.stat().st_mode)
            yield Finding(
                "others",
                "note",
                f"can read {settings}, but not use this {what}: {closed} is closed to them (mode {mode:04o})",
                "make the environment with a Python that all can run: make env PYTHON=/usr/bin/python3"
                if what == "Python"
                else "install the course where all can read it",
            )
            return
    yield Finding("others", "ok", "can run this Python and the course, and read the settings")


def closed_to_others(path: Path) -> Path | None:
    """The uppermost thing on the way to a file that lets other users not pass, links followed; None where all do."""
    names = [Path(os.path.abspath(path))]
    while names[-1].is_symlink():
        # An environment's Python is a chain of links, each of which may lie somewhere else.
        names.append(Path(os.path.normpath(names[-1].parent / os.readlink(names[-1]))))
    for name in [*names, path.resolve()]:
        for above in reversed(name.parents):
            if not above.stat().st_mode & stat.S_IXOTH:
                return above
    return None if path.stat().st_mode & stat.S_IROTH else path.resolve()
