"""Ray itself, which the course does not depend on: imported here, and nowhere else; and the cluster that it reaches."""

from __future__ import annotations

import logging
import os
import socket
import warnings
from dataclasses import dataclass
from typing import Any

from dtcourse.launch.cluster.settings import Settings
from dtcourse.plural import plural

PACKAGE = "ray==2.60.0"  # which the tests try; none below 2.52.0 (CVE-2025-62593)
ADDRESS = "RAY_ADDRESS"
REACHES = 5.0  # seconds in which a host must answer

TO_DO = (
    "`ray start --head` starts one on this machine, `ray start --address=HOST:6379` adds another machine to it, and "
    f"{ADDRESS}=HOST:6379 names one that runs elsewhere"
)
TOKEN = (
    "where its `ray start` had RAY_AUTH_MODE=token, start the notebook with that too, and with the same token in "
    "~/.ray/auth_token; else use the cluster's own version of Ray"
)

# Of a machine without a raylet of that cluster's, after a minute (GCS_SERVER_REQUEST_TIMEOUT_SECONDS of Ray's)
NOT_JOINED = "No node info found"


def connected() -> Any:
    """The module ray, with this process connected to a cluster. ImportError or RuntimeError says what is missing.

    A connection that the notebook has made itself is taken; else RAY_ADDRESS names the cluster, else Ray looks for one
    on this machine. The connection stays: Ray has one for each process.
    """
    try:
        import ray
    except ImportError:
        raise ImportError(
            f'cluster="ray" needs the package ray, of the cluster\'s own version: pip install "{PACKAGE}"'
        ) from None
    if not ray.is_initialized():
        _connect(ray, os.environ.get(ADDRESS) or "auto")
    return ray


def _connect(ray: Any, address: str) -> None:
    where = f"at {address}" if address != "auto" else "on this machine"
    if "://" in address:
        raise RuntimeError(
            f"{ADDRESS} is {address}: a launch needs a notebook on one of the cluster's own machines, and not Ray's "
            "client; start it there, with RAY_ADDRESS=HOST:6379 or without"
        )
    if address != "auto" and not _answers(address):
        raise RuntimeError(f"no Ray cluster can be reached {where}: {TO_DO}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of what a later Ray will do
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            # Nor what Ray has to say of a raylet that ended: the last lines of its log, in colours.
            ray._private.worker._worker_logs_enabled = False
    except Exception as error:  # Ray has some of its own, of a token that is missing
        if address == "auto":
            raise RuntimeError(
                f"no Ray cluster can be reached {where}: {TO_DO}. If one runs here: {TOKEN} ({error})"
            ) from None
        if NOT_JOINED in str(error):
            raise RuntimeError(
                f"this machine has not joined the Ray cluster {where}, and a notebook runs on one that has: run "
                f"`ray start --address={address}` here, or start the notebook there ({error})"
            ) from None
        raise RuntimeError(
            f"{address} answers, and takes no connection of this notebook's: {TOKEN} ({error})"
        ) from None


def _answers(address: str) -> bool:
    """Whether anything listens there: Ray itself would go on trying for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), REACHES).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


@dataclass(frozen=True)
class Node:
    """A machine of the cluster, with what it has in all."""

    identifier: str
    name: str
    resources: dict[str, float]

    def room(self, settings: Settings) -> int:
        """The most ranks that it can take."""
        gpus = settings.gpus_per_node
        if self.resources.get("GPU", 0) < gpus:
            return 0
        if self.resources.get("memory", 0) < memory(settings):
            return 0
        return int(self.resources.get("CPU", 0) // settings.cpus_per_rank)


def memory(settings: Settings) -> float:
    """Bytes, of one node."""
    return (settings.memory_per_node or 0) * 1024**3


def nodes(ray: Any) -> list[Node]:
    """The machines that live, by their names; where two have the same name, a piece of the identifier tells them."""
    alive = [one for one in ray.nodes() if one["Alive"]]
    names = [one["NodeName"] for one in alive]
    found = []
    for one in alive:
        name, identifier = one["NodeName"], one["NodeID"]
        if names.count(name) > 1:
            name = f"{name}-{identifier[:6]}"
        found.append(Node(identifier, name, one["Resources"]))
    return sorted(found, key=lambda node: node.name)


def lives(ray: Any, identifier: str) -> bool:
    """Whether a machine is there: Ray has not lost it, and its raylet takes connections.

    Ray itself misses a raylet that was killed alone some time later, while its port refuses at once.
    """
    for one in ray.nodes():
        if one["NodeID"] == identifier and one["Alive"]:
            try:
                where = one["NodeManagerAddress"], one["NodeManagerPort"]
                socket.create_connection(where, REACHES).close()
            except ConnectionRefusedError:
                return False
            except OSError:  # silence is for Ray to judge
                pass
            return True
    return False


def nodes_for(ray: Any, settings: Settings, world_size: int, asked: int) -> int:
    """As few nodes as have room for all ranks, or as many as asked. ValueError where there is no such room."""
    if asked > 1:
        settings.nodes_for(
            world_size, asked
        )  # as for other clusters: of equal size, and not too large
    found = nodes(ray)
    for number in [asked] if asked > 1 else range(1, len(found) + 1):
        if have_room(found, settings, world_size, number):
            return number
    raise ValueError(_no_room(found, settings, world_size, asked))


def have_room(found: list[Node], settings: Settings, world_size: int, number: int) -> bool:
    """Whether so many of these nodes can take the ranks among them, were they free."""
    each, more = divmod(world_size, number)
    wanted = [each + 1] * more + [each] * (number - more)  # as options.Layout divides them
    rooms = sorted((_room(node, settings) for node in found), reverse=True)
    return number <= len(rooms) and all(w <= r for w, r in zip(wanted, rooms, strict=False))


def _room(node: Node, settings: Settings) -> int:
    room = node.room(settings)
    return room if settings.ranks_per_node is None else min(room, settings.ranks_per_node)


def _no_room(found: list[Node], settings: Settings, world_size: int, asked: int) -> str:
    rooms = {node.name: _room(node, settings) for node in found}
    has = ", ".join(f"{room} on {name}" for name, room in list(rooms.items())[:8])
    needs = f"{plural(settings.cpus_per_rank, 'CPU')} each"
    if settings.gpus_per_node:
        needs += f" and {plural(settings.gpus_per_node, 'GPU')} per node"
    laid = f", laid out as {asked} nodes," if asked > 1 else ""
    return (
        f"{plural(world_size, 'rank')}{laid} with {needs} have no room on this Ray cluster, which takes "
        f"{sum(rooms.values())} ({has or 'it has no node'}): launch fewer ranks, name another number of nodes, or add "
        "a machine (ray start --address=HOST:6379)"
    )
