"""Where a notebook's launches go: to this machine, or to a cluster."""

from __future__ import annotations

import os
from pathlib import Path

HERE = "here"  # launch(..., cluster=HERE): on this machine, whatever use_cluster said
_cluster_of_all: str | None = None


def of(cluster: str | None, emulated: bool) -> str | None:
    """The cluster of a launch that names this one; None: this machine."""
    if cluster is None and not emulated:
        cluster = _cluster_of_all
    return None if cluster == HERE else cluster


def use_cluster(cluster: str | None) -> None:
    """Sends every launch from now on that names no cluster to this one; None: to this machine, as at the start.

    cluster: as launch takes it. ValueError where there is none.

    What is emulated stays on this machine, where it takes the same emulated time. It is what a lesson's CLUSTER
    parameter does, and so `dtcourse run 06 --cluster slurm`.
    """
    global _cluster_of_all
    if cluster is not None and cluster != HERE:
        from dtcourse.launch.cluster import remote

        remote.find(cluster)
        if cluster.endswith(".toml"):  # the notebook may change its folder later
            cluster = os.path.abspath(cluster)
    _cluster_of_all = cluster


def shared_folder() -> str | None:
    """A folder whose files all ranks see, for tempfile's `dir`: the cluster's own where use_cluster named one.

    None is tempfile's usual place, which ranks on this machine see. On Ray it is this machine's: ranks of another one
    see it where the machines share it.

        with tempfile.TemporaryDirectory(dir=shared_folder()) as folder:
            launch(write_a_part, 4, folder)
    """
    if _cluster_of_all in (None, HERE):
        return None
    from dtcourse.launch.cluster import folder, remote

    return str(folder.of_jobs(Path(remote.find(_cluster_of_all).folder)))
