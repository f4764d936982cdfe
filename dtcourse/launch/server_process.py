"""How the fork server's process begins: as a new Python that imports what ranks need, or as a copy of this one.

multiprocessing starts its own in the first way, but imports with the garbage collector at work. Its loop
(forkserver.main) and its protocol are used as they are.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection, forkserver, spawn, util

from dtcourse.launch import again


def start(begin: Callable[[int, int], int]) -> tuple[str, int, int]:
    """Starts a server by `begin`, which gets a listening socket and the end of a pipe, and returns a process id.

    Returns the server's address, its process id, and the pipe's other end: while a process holds that, the server
    stays.
    """
    address = connection.arbitrary_address("AF_UNIX")  # type: ignore[attr-defined]
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


# The collector would find nothing in a quarter of the time. What is loaded is put out of its sight, or a rank's first
# full collection would write to every object, and so copy all pages that the ranks share.
_SERVE = """
import gc, importlib
gc.disable()
for name in {modules!r}:
    try:
        importlib.import_module(name)
    except ImportError:
        pass
gc.freeze()
gc.enable()
from multiprocessing.forkserver import main
main({listener}, {alive}, [])
"""


def anew(modules: list[str]) -> Callable[[int, int], int]:
    """A new Python that imports `modules` first. One that it does not find is left to the ranks."""

    def begin(listener: int, alive: int) -> int:
        text = _SERVE.format(modules=modules, listener=listener, alive=alive)
        flags = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
        python = spawn.get_executable()
        return util.spawnv_passfds(python, [python, *flags, "-c", text], [listener, alive])  # type: ignore

    return begin


def as_copy(listener: int, alive: int) -> int:
    """A fork of this process, which is to have one thread."""
    # A rank inherits that SIGINT waits until it has a group of its own; for us it is only put off.
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    again.freeze()
    try:
        if (pid := os.fork()) == 0:
            try:
                _close_all_but({0, 1, 2, listener, alive})
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
