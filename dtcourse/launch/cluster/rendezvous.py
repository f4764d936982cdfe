"""Where the agents of a job, and after them its ranks, meet: a TCP store on the network between the nodes.

Node 0 serves it and writes its address into the job's folder; the others read it there. It listens on the interface
that leads to the other nodes, and on no other.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil

from dtcourse.launch import rendezvous
from dtcourse.launch.cluster import call as words
from dtcourse.launch.cluster import slurm
from dtcourse.launch.cluster.call import Call
from dtcourse.launch.cluster.folder import Reader, Writer

MEET = 120.0  # seconds in which node 0 must have said where it listens


class NodeRendezvous:
    """Where the agents of all nodes meet: a TCP store that node 0 serves on the network
    between the nodes, and on no other.

    address, port: of the store
    interface:     the network interface of this node that leads there
    """

    def __init__(self, folder: Path, node: int, name: str, call: Call) -> None:
        self.nodes, self._store, self._served = call.layout.nodes, None, None
        file = folder / f"{words.RENDEZVOUS}-{os.environ.get('SLURM_RESTART_COUNT', 0)}"
        if node == 0:
            self.address = _own_address(call.interface, name, self.nodes)
            door = socket.create_server((self.address, 0), backlog=socket.SOMAXCONN)
            self.port: int = door.getsockname()[1]
            self._served = rendezvous.serve(door)
            Writer(file).write((self.address, self.port))
        else:
            self.address, self.port = _told(file)
        self.interface = call.interface or _interface(self.address, self.port)

    def __enter__(self) -> NodeRendezvous:
        where = f"tcp://{self.address}:{self.port}"
        self._store = rendezvous.join(where, timedelta(seconds=MEET))
        return self

    def barrier(self, word: str, limit: float | None) -> None:
        """Waits until the agents of all nodes have come to this word; at most `limit` seconds (None: a year)."""
        self._barrier(self._store, word, limit)

    def barrier_of_thread(self, word: str, limit: float) -> None:
        """The same for another thread, while the main one may wait: one connection serves one at a time."""
        where = f"tcp://{self.address}:{self.port}"
        self._barrier(rendezvous.join(where, timedelta(seconds=MEET)), word, limit)

    def _barrier(self, store: Any, word: str, limit: float | None) -> None:
        if store.add(f"dtcourse/{word}", 1) == self.nodes:
            store.set(f"dtcourse/{word}/all", "1")
        store.wait([f"dtcourse/{word}/all"], timedelta(seconds=limit or 365 * 24 * 3600))

    def leave(self) -> None:
        """Node 0 serves the store, so it waits for all others, which wait for nobody."""
        store: Any = self._store
        if store.add("dtcourse/left", 1) == self.nodes:
            store.set("dtcourse/left/all", "1")
        if self._served is not None:
            store.wait(["dtcourse/left/all"], timedelta(seconds=MEET))

    def __exit__(self, *_: object) -> None:
        self._store = self._served = None


def _told(file: Path) -> tuple[str, int]:
    """Where node 0 listens, as soon as it has said so."""
    deadline = time.monotonic() + MEET
    reader = Reader(file)
    while time.monotonic() < deadline:
        with suppress(FileNotFoundError):
            # Listing the folder makes a network file system look for new names.
            os.listdir(file.parent)
            for deserialize in reader.new():
                return deserialize()
        time.sleep(0.05)
    raise RuntimeError(f"node 0 has not said where it listens in {MEET:g} s")


def _own_address(interface: str | None, name: str, nodes: int) -> str:
    """The address of this node that the other nodes reach."""
    if interface is not None:
        found = psutil.net_if_addrs()
        for known in found.get(interface, []):
            if known.family == socket.AF_INET:
                return known.address
        raise RuntimeError(
            f"node {name} has no network interface {interface} with an IPv4 address; it has {', '.join(found)}"
        )
    if nodes == 1:
        return "127.0.0.1"
    # By the name that Slurm itself uses to reach it. The node's own idea of its name may be a loopback address.
    known = os.environ.get("DTCOURSE_HEAD") or slurm.details("node", name).get("NodeAddr", name)
    return socket.gethostbyname(known)


def _interface(address: str, port: int) -> str:
    """The interface that leads to that address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, port))  # sends nothing: only looks up the way
        own = probe.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(known.address == own for known in addresses):
            return name
    raise RuntimeError(f"no network interface of this node has the address {own}")
