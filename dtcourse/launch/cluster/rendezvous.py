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
from dtcourse.launch.cluster.call import Call, Hold
from dtcourse.launch.cluster.folder import Reader, Writer
from dtcourse.launch.cluster.station import Station

_END = "dtcourse/end"
MEET = 120.0  # seconds in which node 0 must have said where it listens


class Ended(Exception):
    """All nodes leave this call: another node's ranks have failed, or the notebook wants no answer any more."""


class NodeRendezvous:
    """Where the agents of all nodes meet: a TCP store that node 0 serves on the network
    between the nodes, and on no other.

    address, port: of the store
    interface:     the network interface of this node that leads there
    """

    def __init__(self, folder: Path, station: Station, call: Call | Hold) -> None:
        self.agents, self._served = len(call.parts), None
        self._store: Any = None
        file = folder / words.rendezvous_name(station.attempt)
        if station.number == 0:
            self.address = _own_address(call.interface, station, call.layout.nodes)
            door = socket.create_server((self.address, 0), backlog=socket.SOMAXCONN)
            self.port: int = door.getsockname()[1]
            self._served = rendezvous.serve(door)
            Writer(file).write((self.address, self.port))
        else:
            self.address, self.port = _told(file)
        self.interface = call.interface or _interface(self.address, self.port)

    def __enter__(self) -> NodeRendezvous:
        self._store = self.connect()
        return self

    def barrier(self, word: str, limit: float | None) -> None:
        """Waits until the agents of all nodes have come to this word; at most `limit` seconds (None: a year)."""
        self._barrier(self._store, word, limit)

    def barrier_of_thread(self, word: str, limit: float) -> None:
        """The same for another thread, while the main one may wait: one connection serves one at a time."""
        self._barrier(self.connect(), word, limit)

    def _barrier(self, store: Any, word: str, limit: float | None) -> None:
        if store.add(f"dtcourse/{word}", 1) == self.agents:
            store.set(f"dtcourse/{word}/all", "1")
        began = time.monotonic()
        # Asked again and again: a wait inside the store could not be left for a call that has ended.
        while not store.check([f"dtcourse/{word}/all"]):
            waited = time.monotonic() - began
            if store.check([_END]):
                raise Ended
            if limit is not None and waited > limit:
                raise TimeoutError(f"not all nodes have come to {word} in {limit:g} s")
            time.sleep(min(0.002 + waited / 50, 0.1))

    def end(self, store: Any = None) -> None:
        """Has all nodes leave the call that they are at. store: as for `is_over`."""
        (store or self._store).set(_END, "1")

    def is_over(self, store: Any = None) -> bool:
        """Whether a node has said so. store: from `connect`, for another thread than the main one."""
        return bool((store or self._store).check([_END]))

    def connect(self) -> Any:
        """A connection of its own to the store."""
        return rendezvous.join(f"tcp://{self.address}:{self.port}", timedelta(seconds=MEET))

    def leave(self) -> None:
        """Node 0 serves the store, so it waits for all others, which wait for nobody."""
        store = self._store
        if store.add("dtcourse/left", 1) == self.agents:
            store.set("dtcourse/left/all", "1")
        if self._served is not None:
            store.wait(["dtcourse/left/all"], timedelta(seconds=MEET))

    def __exit__(self, *_: object) -> None:
        self._store = self._served = None


def _told(file: Path) -> tuple[str, int]:
    """Where node 0 listens, as soon as it has said so."""
    began = time.monotonic()
    reader = Reader(file)
    while (waited := time.monotonic() - began) < MEET:
        with suppress(FileNotFoundError):
            # Listing the folder makes a network file system look for new names.
            os.listdir(file.parent)
            for deserialize in reader.new():
                return deserialize()
        time.sleep(min(0.005 + waited / 20, 0.05))
    raise RuntimeError(f"node 0 has not said where it listens in {MEET:g} s")


def _own_address(interface: str | None, station: Station, nodes: int) -> str:
    """The address of this node that the other nodes reach."""
    if interface is not None:
        found = psutil.net_if_addrs()
        for known in found.get(interface, []):
            if known.family == socket.AF_INET:
                return known.address
        raise RuntimeError(
            f"node {station.node} has no network interface {interface} with an IPv4 address; it has {', '.join(found)}"
        )
    if nodes == 1:
        return "127.0.0.1"
    return socket.gethostbyname(station.known_address())


def _interface(address: str, port: int) -> str:
    """The interface that leads to that address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, port))  # sends nothing: only looks up the way
        own = probe.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(known.address == own for known in addresses):
            return name
    raise RuntimeError(f"no network interface of this node has the address {own}")
