"""What an actor starts on its node: the agent of its ranks, as on Slurm, in a process that has nothing of Ray's in it.

A Ray worker has threads from its first moment, so no rank could be split off from it; and what a rank does to its
process (its signals, its output, its end) would happen to the worker.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from dtcourse.launch.cluster import agent
from dtcourse.launch.cluster.station import Station


def main(folder: str, station: Station) -> None:
    """Runs the ranks that this station is asked for in its folder."""
    agent.run(Path(folder), station, started=_end_with_actor)


def _end_with_actor() -> None:
    """Ends this process, and with it its ranks, when the actor has gone, however it went: standard input ends then."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, name="dtcourse-actor", daemon=True).start()
