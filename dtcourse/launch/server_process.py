"""How the fork server's process begins: as a new Python that imports what ranks need, or as a copy of this one.

multiprocessing starts its own in the first way, but imports with the garbage collector at work. Its loop
(forkserver.main) and its protocol are used as they are.

A new one may have a light server: a copy of it from before it imports what only some ranks need (parts.py), which
serves a first launch that needs none of these. It has an address and a pipe of its own. The server waits until it has
ended, so that the processors are the ranks', and then for a request: of many scripts there will be none.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import forkserver, spawn, util
from typing import Any

from dtcourse.launch import again, sockets


def start(begin: Callable[[int, int], int]) -> tuple[str, int, int]:
    """Starts a server by `begin`, which gets a listening socket and the end of a pipe, and returns a process id.

    Returns the server's address, its process id, and the pipe's other end: while a process holds that, the server
    stays.
    """
    address = sockets.free_address()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        if not util.is_abstract_socket_namespace(address):
            os.chmod(address, 0o600)
        listener.listen()
        theirs, ours = os.pipe()
        try:
            return address, begin(listener.fileno(), theirs), ours
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)


class Client(forkserver.ForkServer):
    """Our side of a server, of which `address` and `alive` are known."""

    def __init__(self, address: str, alive: int) -> None:
        super().__init__()
        self._forkserver_address, self._forkserver_alive_fd = address, alive

    def ensure_running(self) -> None:
        """It is not ours to start: it is there, or the connection is refused."""


# The collector would find nothing in a quarter of the time. What is loaded is put out of its sight, or a rank's first
# full collection would write to every object, and so copy all pages that the ranks share.
_SERVE = """
def serve(modules, listener, alive, parts=(), *light):
    import gc, importlib, os
    from multiprocessing import connection
    from multiprocessing.forkserver import main

    def load(names):
        gc.disable()
        for name in names:
            if connection.wait([alive], 0):
                break  # nobody is there any more whom we could serve
            try:
                importlib.import_module(name)
            except ImportError:
                pass
        gc.freeze()
        gc.enable()

    load(modules)
    if light:
        pid = os.fork()
        for descriptor in (listener, alive) if pid == 0 else light:
            os.close(descriptor)
        if pid == 0:
            main(*light, [])
        os.waitpid(pid, 0)
        connection.wait([listener, alive])
        load(parts)
    main(listener, alive, [])

"""


def anew(modules: list[str]) -> Callable[[int, int], int]:
    """A new Python that imports `modules` first. One that it does not find is left to the ranks."""
    return lambda listener, alive: _new_python([listener, alive], modules, listener, alive)


def with_light(
    modules: list[str], parts: list[str]
) -> tuple[tuple[str, int, int], tuple[str, int]]:
    """Starts such a one that imports `modules`, and `parts` when its light server has ended and it is asked itself.

    Returns what `start` does, and the light server's address and the end of its pipe: when nobody holds that, it ends.
    """
    light: list[tuple[str, int]] = []

    def begin(listener: int, alive: int) -> int:
        address, pid, ours = start(
            lambda *ends: _new_python(
                [listener, alive, *ends], modules, listener, alive, parts, *ends
            )
        )
        light.append((address, ours))
        return pid

    return start(begin), light[0]


def _new_python(descriptors: list[int], *arguments: Any) -> int:
    flags = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
    python = spawn.get_executable()
    text = f"{_SERVE}serve{arguments!r}"
    return util.spawnv_passfds(python, [python, *flags, "-c", text], descriptors)  # type: ignore


def as_copy(keeps: Sequence[int]) -> Callable[[int, int], int]:
    """A fork of this process, which is to have one thread. keeps: of its open files the copy has these."""
    return lambda listener, alive: _copy(listener, alive, keeps)


def _copy(listener: int, alive: int, keeps: Sequence[int]) -> int:
    # A rank inherits that SIGINT waits until it has a group of its own; for us it is only put off.
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    again.freeze()
    try:
        if (pid := os.fork()) == 0:
            try:
                _close_all_but({0, 1, 2, listener, alive, *keeps})
                forkserver.main(listener, alive, [])
            finally:
                os._exit(0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
    return pid


def _close_all_but(kept: set[int]) -> None:
    """What else this process has open is none of the ranks' business."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor not in kept:
            with suppress(OSError):
                os.close(descriptor)
