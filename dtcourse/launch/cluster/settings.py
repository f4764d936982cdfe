"""cluster.toml: what an instructor writes once, so that nobody else has to know the cluster (EXAMPLE, below)."""

from __future__ import annotations

import os
import re
import tomllib
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from dtcourse.launch import options
from dtcourse.launch.cluster import kubernetes_table
from dtcourse.launch.cluster.kubernetes_table import Kubernetes
from dtcourse.launch.cluster.settings_example import EXAMPLE as EXAMPLE

NAME = "cluster.toml"
VARIABLE = "DTCOURSE_CLUSTER"
SCHEDULERS = ("slurm", "ray")
WARNINGS = ("USR2", "HUP")


@dataclass(frozen=True)
class Settings:
    """One cluster, as its users need to know it. Each field has the name that it has in the file.

    scheduler:       what hands out the nodes, "slurm" or "ray"; which settings are Slurm's alone says ray.py
    folder:          where jobs keep their files; all nodes must see it under this name
    partition, account: as for sbatch; None leaves them to the cluster's defaults
    minutes:         a job's time limit
    wait_minutes:    how long launch waits in the queue before it gives up and cancels the job; None: a day
    signal:          the signal that Slurm sends the ranks before the time limit, and how many seconds before, such as
                     "USR2@90" (which None means): a function with a handler for it can save
    keep:            hold the nodes between the launches of a notebook (one job, allocations.py), not one job for each
    idle_minutes:    without a launch, after which they are given back; keep_minutes: for which they are held at most
    ranks_per_node:  the most ranks of one node; None puts all ranks on as many nodes as launch(nodes=) says
    cpus_per_rank:   CPUs that a rank may use (--cpus-per-task is this times the ranks of a node)
    memory_per_node: GB; None leaves it to the cluster's default
    gpus_per_node:   0 runs the ranks on CPUs
    interface:       the network interface between the nodes; None finds the one that leads to the other nodes
    container:       an image for the ranks, where Slurm has the pyxis plugin (srun's --container-image); `python` is
                     the image's own
    modules:         environment modules to load first
    setup:           lines of shell to run first
    python:          Python on the nodes; None takes the notebook's own path
    options:         other options of sbatch by their long names; true is an option without a value
    kubernetes:      the table [kubernetes]
    source:          the file this was read from, for messages
    """

    scheduler: str = "slurm"
    folder: str = "~/.dtcourse/jobs"
    partition: str | None = None
    account: str | None = None
    minutes: int = 30
    wait_minutes: float | None = None
    signal: str | None = None
    keep: bool = False
    idle_minutes: float = 10
    keep_minutes: int = 60
    ranks_per_node: int | None = None
    cpus_per_rank: int = 1
    memory_per_node: float | None = None
    gpus_per_node: int = 0
    interface: str | None = None
    container: str | None = None
    modules: list[str] = field(default_factory=list)
    setup: list[str] = field(default_factory=list)
    python: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    kubernetes: Kubernetes = field(default_factory=Kubernetes)
    source: str = "dtcourse's defaults"

    def with_limit(self, minutes: int | None, signal: str | None) -> Settings:
        """With another time limit, or another signal before it, where these are given. ValueError as for a file."""
        given = {"minutes": minutes, "signal": signal}
        changed = replace(self, **{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]
        _check(changed)
        return changed

    @property
    def warning(self) -> tuple[str, int]:
        """The signal before the time limit: (its name, how many seconds before)."""
        if self.signal is None:
            return "USR2", min(90, self.minutes * 30)  # a short job has half of its time for itself
        name, _, seconds = self.signal.partition("@")
        return name, int(seconds)

    def nodes_for(self, world_size: int, nodes: int, equal: bool = False) -> int:
        """The nodes to ask for: as many as asked, or as few as have room for all ranks.

        equal: only so many that all have equally many ranks
        """
        most = self.ranks_per_node
        if nodes == 1 and most is not None:
            least = -(-world_size // most)
            if not equal:
                return least
            nodes = next(n for n in range(least, world_size + 1) if world_size % n == 0)
        if world_size % nodes:
            raise ValueError(
                f"{world_size} ranks cannot be laid out as {nodes} nodes of equal size"
            )
        if most is not None and world_size // nodes > most:
            raise ValueError(
                f"{world_size} ranks on {nodes} nodes are {world_size // nodes} per node, and {self.source} allows "
                f"{most} (ranks_per_node): ask for more nodes"
            )
        return nodes


def find(cluster: str) -> Settings:
    """The settings that `cluster` names: a scheduler, whose cluster.toml is looked for, or a .toml file.

    Looked for in this order: the file that DTCOURSE_CLUSTER names, cluster.toml in this folder and those above it,
    ~/.config/dtcourse/cluster.toml. A file of another scheduler is passed over. Without any, the cluster's own defaults
    hold.
    """
    if not isinstance(cluster, str):
        raise ValueError(
            f'cluster is "slurm", "ray", the path of a {NAME}, or None (this machine); got {cluster!r}'
        )
    if cluster.endswith(".toml"):
        return read(Path(cluster))
    if cluster not in SCHEDULERS:
        raise ValueError(f'cluster is "slurm", "ray" or the path of a {NAME}; got {cluster!r}')
    named = os.environ.get(VARIABLE)
    here = Path.cwd()
    home = Path.home() / ".config" / "dtcourse"
    inside = [folder / NAME for folder in (here, *here.parents, home)]
    for file in [Path(named)] if named else filter(Path.is_file, inside):
        settings = read(file)
        if settings.scheduler == cluster:
            return settings
    return Settings(scheduler=cluster)


def of_file(source: str) -> Settings:
    """The settings that a job was sent with, as long as their file can be read; else those of "slurm"."""
    if source:
        with suppress(ValueError, OSError):
            return read(Path(source))
    return find("slurm")


def remember(settings: Settings) -> None:
    """Notes a cluster.toml that nobody would find, so that `dtcourse jobs` knows of its jobs."""
    path = os.path.abspath(settings.source)
    with suppress(ValueError, OSError):
        if not os.path.isfile(path) or os.path.abspath(find("slurm").source) == path:
            return
        if path not in remembered():
            file = _remembered()
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(file, "a") as notes:
                notes.write(f"{path}\n")


def remembered() -> list[str]:
    """The files that were noted, in their order."""
    try:
        return _remembered().read_text().splitlines()
    except OSError:
        return []


def _remembered() -> Path:
    return Path.home() / ".dtcourse" / "clusters"


def read(path: Path) -> Settings:
    """The settings in a file. ValueError names what is wrong in it and what would be right."""
    path = path.expanduser()
    try:
        written = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(
            f"there is no file {path}: `dtcourse cluster example` prints one to start from"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    known = {f.name: f for f in fields(Settings) if f.name != "source"}
    for name in written:
        if name not in known:
            raise ValueError(f"{path}: there is no setting {name!r}; known are {', '.join(known)}")
    table = written.pop("kubernetes", {})
    settings = Settings(
        **written, kubernetes=kubernetes_table.from_table(table, str(path)), source=str(path)
    )
    _check(settings)
    return settings


def _check(settings: Settings) -> None:
    def wrong(name: str, expected: str) -> ValueError:
        return ValueError(
            f"{settings.source}: {name} is {expected}; got {getattr(settings, name)!r}"
        )

    if settings.scheduler not in SCHEDULERS:
        raise wrong("scheduler", " or ".join(f'"{name}"' for name in SCHEDULERS))
    for name in ("folder", "partition", "account", "interface", "container", "python"):
        value = getattr(settings, name)
        if value is not None and (not isinstance(value, str) or not value):
            raise wrong(name, "a text")
    if not isinstance(settings.keep, bool):
        raise wrong("keep", "true or false")
    for name in ("minutes", "keep_minutes", "cpus_per_rank", "ranks_per_node"):
        value = getattr(settings, name)
        if value is not None:
            options.whole_number(f"{settings.source}: {name}", value, "a number of at least 1")
    gpus = settings.gpus_per_node
    if isinstance(gpus, bool) or not isinstance(gpus, int) or gpus < 0:
        raise wrong("gpus_per_node", "a whole number, 0 for none")
    for name in ("wait_minutes", "idle_minutes", "memory_per_node"):
        value = getattr(settings, name)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int | float) or value <= 0
        ):
            raise wrong(name, "a number above 0")
    if settings.signal is not None:
        _check_signal(settings)
    for name in ("modules", "setup"):
        value = getattr(settings, name)
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise wrong(name, "a list of texts")
    if not isinstance(settings.options, dict):
        raise wrong("options", "a table of sbatch's options")
    for name, setting in (("time", "minutes"), ("signal", "signal")):
        if name in settings.options:
            raise ValueError(
                f"{settings.source}: {name} under [options] is the setting `{setting}`: write it there"
            )


def _check_signal(settings: Settings) -> None:
    text, form = settings.signal, f"({'|'.join(WARNINGS)})@[1-9][0-9]{{0,4}}"
    if isinstance(text, str) and re.fullmatch(form, text, re.ASCII):
        return
    raise ValueError(
        f"{settings.source}: signal is a name ({' or '.join(WARNINGS)}), @ and the seconds before the time limit, such "
        f'as "USR2@90"; got {text!r}. TERM comes at the end in any case, and USR1 asks a rank for its stack'
    )
