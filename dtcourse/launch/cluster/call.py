"""What the agents of a job are asked to do: the notebook writes it into the job's folder, every node reads it.

The folder's files:
    call        one frame, a Call; and one, the function with its arguments
    rendezvous  written by node 0: where the store of the ranks listens
    node-K.log  written by node K: what its ranks said, and how it ended (the words below)
    job.json    what `dtcourse jobs` shows
The folder of an allocation, whose agents take one call after the other (serving.py):
    call        one frame, a Hold
    orders      written by the notebook: CALL or OVER, for each call and for the end
    call-N      the folder of the N-th call, as above
    call-N/end  the notebook wants no answer any more
    over        written by node 0: no further call is taken
"""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dtcourse.launch import course_files, options, rank

CALL, RENDEZVOUS, RECORD = "call", "rendezvous", "job.json"
ORDERS, END, OVER = "orders", "end", "over"

# The words of a node's log: (word, content).
HERE = "here"  # the agent runs: {"node": its name}
BEATS = "beats"  # from now on its log is touched every BEAT seconds
REFUSED = "refused"  # it will not: a sentence
LINE = "line"  # (rank, text) was printed
MESSAGE = "message"  # (rank, message) of send_message
PROGRESS = "progress"  # of dtcourse.launch.progress
ANSWERED = "answered"  # [rank, ...]: they have, and wait for the other nodes'
RESULTS = "results"  # {rank: answer or RankFailure}, when all ranks of the node have answered
FAILED = "failed"  # [Failure, ...], where one has failed and all stop
TIMEOUT = "timeout"  # (seconds, {ranks that had finished}, {rank: stack})
READY = "ready"  # it takes calls
LEFT = "left"  # no rank of this call is on the node any more

BEAT = 2.0  # seconds between two signs of life of an agent


def log_name(node: int) -> str:
    """The log of one node."""
    return f"node-{node}.log"


def rendezvous_name(attempt: int) -> str:
    """Where node 0 says where it listens, in its so many-th try."""
    return f"{RENDEZVOUS}-{attempt}"


@dataclass(frozen=True)
class Call:
    """One launch, for its agents.

    asked:     of all ranks; each agent gives its own their numbers, environments and rendezvous
    directory, path: the notebook's own, in which the function's modules are found
    interface: the network between the nodes; None: find it
    changes:   {environment variable: its value now, or None}, since the job was submitted
    requeued:  a batch job that Slurm may end and start again
    warning:   (name, seconds before the time limit) of the signal that comes first
    patience:  seconds without a sign of the notebook's life after which the nodes end the job; None: they ask for none
    versions:  what must be the same on the nodes
    shares:    the nodes see the notebook's folders
    """

    layout: options.Layout
    asked: rank.Settings
    directory: str
    path: list[str]
    interface: str | None
    requeued: bool = False
    changes: dict[str, str | None] = field(default_factory=dict)
    warning: tuple[str, float] = ("USR2", 90.0)
    patience: float | None = None
    versions: dict[str, str] = field(default_factory=lambda: versions())
    shares: bool = True

    @property
    def parts(self) -> list[range]:
        """The ranks of each agent."""
        return parts(self.layout)


@dataclass(frozen=True)
class Hold:
    """An allocation, for its agents: like a Call, as far as that does not depend on the function.

    layout: the most that a call may ask for
    idle:   seconds without a call after which the nodes are given back
    """

    layout: options.Layout
    directory: str
    path: list[str]
    interface: str | None
    warning: tuple[str, float]
    patience: float
    idle: float
    requeued: bool = False
    versions: dict[str, str] = field(default_factory=lambda: versions())
    shares: bool = True

    @property
    def parts(self) -> list[range]:
        """The ranks of each agent, at most."""
        return parts(self.layout)


def parts(layout: options.Layout) -> list[range]:
    """The ranks of each of a job's agents: those of a node."""
    return [layout.ranks_of(node) for node in range(layout.nodes)]


def changes(before: dict[str, str], now: dict[str, str]) -> dict[str, str | None]:
    """What has become of the environment: {name: its value, or None for one that went}."""
    gone: dict[str, str | None] = dict.fromkeys(before.keys() - now.keys())
    return gone | {name: value for name, value in now.items() if before.get(name) != value}


def changed(before: dict[str, str], by: dict[str, str | None]) -> dict[str, str]:
    """The environment with these changes."""
    return {name: value for name, value in {**before, **by}.items() if value is not None}


def call_name(number: int) -> str:
    """The folder of an allocation's call."""
    return f"call-{number}"


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


def difference(
    here: dict[str, str], there: dict[str, str], node: str, shares: bool = True
) -> str | None:
    """A sentence on what a node has in another version than the notebook, or None.

    shares: the nodes see the notebook's folders, so that one environment can be for all
    """
    differing = [name for name in here if here[name] != there.get(name)]
    if not differing:
        return None
    name = differing[0]
    if name == "dtcourse":
        what = "other source files of dtcourse than the notebook"
        once = "install the course once, on a file system that all nodes share"
    else:
        what = f"{name} {there.get(name, 'not at all')}, the notebook has {here[name]}"
        once = "use one environment for both (`python` in cluster.toml says which Python runs on the nodes)"
    each = "install on each machine of the cluster what the notebook has, in the Python that runs Ray there"
    return f"node {node} has {what}: {once if shares else each}"


def _digest() -> str:
    """The course's own source files, as one number."""
    digest = hashlib.sha256()
    course = Path(course_files.COURSE)
    for path in sorted(course.rglob("*.py")):
        digest.update(str(path.relative_to(course)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def shifted(answer: Any, seconds: float) -> Any:
    """An answer whose events are on the notebook's clock. Emulated time is the same everywhere."""
    if not isinstance(answer, dict) or "events" not in answer or "account" in answer:
        return answer
    events = [replace(e, start=e.start + seconds, end=e.end + seconds) for e in answer["events"]]
    return {**answer, "events": events}
