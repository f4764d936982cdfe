"""What launch needs of whatever hands out a cluster's nodes: a scheduler, and a transport for one of its jobs.

Slurm (slurm.py) and Ray (ray.py) are modules that have this; a third one is another module and its line in `of`.

A job's folder on the notebook's machine holds what its agents are asked to do (call.py), whatever the cluster. How
that comes to them, and how what they say comes back, is the transport's matter: on Slurm all nodes see the folder, on
Ray it travels in messages between actors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from dtcourse.launch.cluster.call import Call, Hold
from dtcourse.launch.cluster.settings import Settings


class Log(Protocol):
    """What one agent says.

    sign: another one than at the last look means that the agent lives
    """

    @property
    def sign(self) -> tuple[int, int]: ...

    def new(self) -> Iterator[Callable[[], Any]]:
        """What it has said since the last look, in order. Each is unpacked by calling it: (word, content)."""
        ...


class Transport(Protocol):
    """Between the notebook and the agents of one job."""

    def advance(self) -> None:
        """Does what is due: to be called before each look into the logs."""
        ...

    @property
    def logs(self) -> Sequence[Log]:
        """One for each agent."""
        ...

    def wrote(self) -> str:
        """The last lines that the agents wrote outside any rank, as a sentence's end; empty where there are none."""
        ...


class Scheduler(Protocol):
    """What hands out the nodes.

    NAME:     as sentences call it
    OVER:     states in which a job will not do anything any more
    SHARES:   whether the nodes see the notebook's folders
    OUTLIVES: whether a job may outlive its notebook: it is recorded then, for `dtcourse jobs`
    """

    NAME: str
    OVER: set[str]
    SHARES: bool
    OUTLIVES: bool

    def require(self) -> None:
        """RuntimeError or ImportError where there is no such cluster, with what to do."""
        ...

    def nodes_for(self, settings: Settings, world_size: int, nodes: int) -> int:
        """The nodes to ask for. ValueError where the ranks have no room."""
        ...

    def submit(
        self,
        folders: list[Path],
        call: Call | Hold,
        settings: Settings,
        name: str,
        requeue: bool = False,
    ) -> list[str]:
        """Submits a job for each folder, and returns their numbers. ValueError where it is refused."""
        ...

    def attend(self, folder: Path, job: str) -> AbstractContextManager[Any]:
        """For as long as the block lasts this process is there for the job, which does not outlive it."""
        ...

    def transport(self, folder: Path, job: str, agents: int) -> Transport:
        """Of a job, or of one call on nodes that are held."""
        ...

    def state_of(self, job: str, comment: str) -> tuple[str, str, str]:
        """(state, its nodes or "", why it waits)."""
        ...

    def never_starts(self, job: str, nodes: int, reason: str) -> str:
        """What to do about a job that waits for what cannot come; empty where it may still start."""
        ...

    def describe(self, state: str, settings: Settings, job: str) -> str:
        """How a job ended, as a sentence's end."""
        ...

    def missing(self, settings: Settings, folder: Path, log: str) -> str:
        """What to do about agents that ended before they said a word, as a sentence's end. log: what they wrote."""
        ...

    def lost_nodes(self, job: str, nodes: str) -> list[str]:
        """Those of a job's nodes that the cluster has lost."""
        ...

    def cancel(self, job: str) -> None:
        """Asks it to end a job; nothing where that has ended."""
        ...


def of(settings: Settings) -> Scheduler:
    """The scheduler that these settings name."""
    if settings.scheduler == "ray":
        from dtcourse.launch.cluster import ray

        return ray
    from dtcourse.launch.cluster import slurm

    return slurm
