"""What the agents of a job are asked to do: the notebook writes it into the job's folder, every node reads it.

The folder's files:
    call        one frame, a Call; and one, the function with its arguments
    rendezvous  written by node 0: where the store of the ranks listens
    node-K.log  written by node K: what its ranks said, and how it ended (the words below)
    job.json    what `dtcourse jobs` shows
"""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dtcourse.launch import options, rank, template

CALL, RENDEZVOUS, RECORD = "call", "rendezvous", "job.json"

# The words of a node's log: (word, content).
HERE = "here"  # the agent runs: {"node": its name}
REFUSED = "refused"  # it will not: a sentence
LINE = "line"  # (rank, text) was printed
MESSAGE = "message"  # (rank, message) of send_message
PROGRESS = "progress"  # of dtcourse.launch.progress
RESULTS = "results"  # {rank: answer or RankFailure}, when all ranks of the node have answered
FAILED = "failed"  # [Failure, ...], where one has failed and all stop
TIMEOUT = "timeout"  # (seconds, {ranks that had finished}, {rank: stack})


def log_name(node: int) -> str:
    """The log of one node."""
    return f"node-{node}.log"


@dataclass(frozen=True)
class Call:
    """One launch, for its agents.

    asked:     of all ranks; each agent gives its own their numbers, environments and rendezvous
    directory, path: the notebook's own, in which the function's modules are found
    interface: the network between the nodes; None: find it
    requeued:  a batch job that Slurm may end and start again
    warning:   (name, seconds before the time limit) of the signal that comes first
    patience:  seconds without a sign of the notebook's life after which the nodes end the job; None: they ask for none
    versions:  what must be the same on the nodes
    """

    layout: options.Layout
    asked: rank.Settings
    directory: str
    path: list[str]
    interface: str | None
    requeued: bool = False
    warning: tuple[str, float] = ("USR2", 90.0)
    patience: float | None = None
    versions: dict[str, str] = field(default_factory=lambda: versions())


def versions() -> dict[str, str]:
    """What must be the same on every node: a pickle made by one version is no promise to another."""
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "none"
    return {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "torch": torch,
        "cloudpickle": version("cloudpickle"),
        "dtcourse": _digest(),
    }


def difference(here: dict[str, str], there: dict[str, str], node: str) -> str | None:
    """A sentence on what a node has in another version than the notebook, or None."""
    differing = [name for name in here if here[name] != there.get(name)]
    if not differing:
        return None
    name = differing[0]
    if name == "dtcourse":
        return (
            f"node {node} has other source files of dtcourse than the notebook: install the course once, on a file "
            "system that all nodes share"
        )
    return (
        f"node {node} has {name} {there.get(name, 'not at all')}, the notebook has {here[name]}: use one "
        "environment for both (`python` in cluster.toml says which Python runs on the nodes)"
    )


def _digest() -> str:
    """The course's own source files, as one number."""
    digest = hashlib.sha256()
    course = Path(template.COURSE)
    for path in sorted(course.rglob("*.py")):
        digest.update(str(path.relative_to(course)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]
