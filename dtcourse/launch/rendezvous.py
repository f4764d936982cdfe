"""Where the ranks of one launch find each other: a file in memory, and a TCP store for those who ask for one.

Forming a group needs a few keys that everybody can read. PyTorch's TCPStore serves them, but each of its connections
asks the name server for the name of 127.0.0.1, to have it for its logs: where an answer is lost, or there is no
network, the launch waits for five seconds (measured: 1 launch in 10 in a sandbox; torch 2.13). So the groups that
launch forms meet in a FileStore, which asks nobody. Its file has no name and lies in
memory: nothing can be left behind.

A function that forms its own group (init=False), or uses torch.distributed.rpc, follows MASTER_ADDR and MASTER_PORT to
a TCPStore. We listen on that port from the start, and make the store when the first one knocks.
"""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from datetime import timedelta
from multiprocessing import connection
from typing import Any

# Whether the file of a store has no name, where the system can; distrust.py says no.
in_memory = True
LOOPBACKS = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


class Rendezvous:
    """One launch's store, in the notebook's process. `close()` when the ranks are gone.

    path:          for a rank's `join`
    address, port: of the TCPStore, on this machine's loopback; the system picks a port that is free, so nothing can be
                   in the way
    """

    def __init__(self) -> None:
        self._door = _listening_on_loopback()
        self._file, self.path = _empty_file()
        self.address: str
        self.port: int
        self.address, self.port = self._door.getsockname()[:2]
        self._closed, self._close = os.pipe()
        self._doorkeeper = threading.Thread(
            target=self._serve, name="dtcourse-tcp-store", daemon=True
        )
        self._doorkeeper.start()

    def _serve(self) -> None:
        """Makes the TCPStore as soon as a first client waits at the door; keeps it until we close."""
        store = None
        if self._door in connection.wait([self._door, self._closed]):  # type: ignore[list-item]
            store = serve(self._door)
            connection.wait([self._closed])  # type: ignore[list-item]
        del store
        self._door.close()
        os.close(self._closed)

    def close(self) -> None:
        """Ends the stores. Does not wait for a name server that the TCPStore may be waiting for."""
        os.close(self._close)
        self._doorkeeper.join(1.0)
        self._file.close()


def _listening_on_loopback() -> socket.socket:
    """By IPv4; by IPv6 where loopback has no other address. OSError where it is down."""
    failed: OSError | None = None
    for family, address in LOOPBACKS:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((address, 9))  # sends nothing, and fails where there is no way
            return socket.create_server((address, 0), family=family, backlog=socket.SOMAXCONN)
        except OSError as error:
            failed = failed or error
    assert failed is not None, "one of the two has failed"
    raise OSError(
        failed.errno,
        f"this machine's loopback interface is down ({failed.strerror}), and ranks meet on it: start it with "
        "`ip link set lo up`, or have the container started with a network",
    )


def serve(door: socket.socket) -> Any:
    """A TCPStore that answers at `door`, a listening socket, as long as it is kept."""
    from torch.distributed import TCPStore

    address, port = door.getsockname()[:2]
    return TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=door.detach(),
    )


def join(where: str, limit: timedelta) -> Any:
    """The store of a launch, in a rank. Waiting for a key that nobody sets raises after `limit`.

    where: the file's path; on several nodes tcp://address:port of a TCPStore

    For a process that ends with the launch: it keeps the file open until it ends, or says `leave`. Others take a Visit.
    """
    store, file = _joined(where, limit)
    if file is not None:
        _files.append(file)
    return store


_files: list[int] = []  # of the stores that this process has joined


def leave() -> None:
    """In a rank that stays for another launch (again.py), when the stores of the last one have gone."""
    while _files:
        os.close(_files.pop())


class Visit:
    """The store of a launch in a process that goes on afterwards: `with Visit(where, limit) as visit: visit.store`.

    Keep no other name for the store: it has to go before its file is closed.
    """

    def __init__(self, where: str, limit: timedelta) -> None:
        self.store, self._file = _joined(where, limit)

    def close(self) -> None:
        """Leaves it. May be called again."""
        self.store = None
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def _joined(where: str, limit: timedelta) -> tuple[Any, int | None]:
    """The store, and the descriptor of its file, to be closed after the store has gone.

    A FileStore opens its path again for each access, and once more when it goes: to count down its users. A path
    /proc/PID/fd/N means another file as soon as the launch's process has closed that one and opened the next, so the
    store would write into that, or end the process where it is a socket. A descriptor of our own stays ours.
    """
    from torch.distributed import FileStore, TCPStore

    if where.startswith("tcp://"):
        address, _, port = where.removeprefix("tcp://").rpartition(":")
        return TCPStore(address, int(port), is_master=False, timeout=limit), None
    file = None
    if where.startswith("/proc/"):
        file = os.open(where, os.O_RDWR | os.O_CLOEXEC)
        where = f"/proc/self/fd/{file}"
    store = FileStore(where)  # no number of ranks: the file is not theirs to delete
    store.set_timeout(limit)
    return store, file


def _empty_file() -> tuple[Any, str]:
    """An empty file, and a path under which this user's processes can open it for as long as we keep it open.

    It lies in memory, or among temporary files.
    """
    if in_memory and hasattr(os, "memfd_create"):
        file = os.fdopen(os.memfd_create("dtcourse-store", os.MFD_CLOEXEC), "r+b")
        return file, f"/proc/{os.getpid()}/fd/{file.fileno()}"
    named = tempfile.NamedTemporaryFile(prefix="dtcourse-store-")  # noqa: SIM115 (close() deletes it)
    return named, named.name
