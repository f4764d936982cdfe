"""A template's process, seen from within and from the notebook: loads modules of the course, splits off ranks.

template.py says when there is one, and which.

What it stands on:
- It has one thread. A fork copies the thread that calls it and the locks of all: with a second thread the copy may
  wait for ever for one that does not exist there. It looks, and serves nobody where it is not so.
- It holds nothing of the user's. It imports with the system's own folders on sys.path only, and looks afterwards.
- It never touches a GPU: a CUDA context does not survive a fork.
- It ends when this process does, however it ends: nobody holds the other end of its `alive` pipe any more.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import socket
import sys
import warnings
from collections.abc import Callable, Collection
from contextlib import suppress
from multiprocessing import Pipe, connection, forkserver
from multiprocessing.connection import Connection

from dtcourse.launch import again, huge_pages, memory, server, server_process, sockets
from dtcourse.launch.course_files import is_system, modules_of, sources, users_modules
from dtcourse.launch.rank_process import RankProcess

# --- in the template ---------------------------------------------------------------------------------------------


def main(listener: socket.socket, alive: Connection, ready: Connection, gathers: bool) -> None:
    """The template's whole life: load what `ready` brings, say so, split off ranks until nobody holds `alive`.

    gathers: put what is loaded into huge pages, which takes a second
    """
    os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]  # we keep no server alive
    multiprocessing.set_start_method(None, force=True)  # the notebook's comes with each call
    sys.path = [folder for folder in sys.path if is_system(folder)]
    gc.disable()  # as server_process.py does
    load(server.OF_RANKS, alive.poll)
    try:
        load(ready.recv(), alive.poll)
    except EOFError:
        return  # the notebook went
    # A rank forgets what was found in folders: to go through 300 of them would copy 600 pages, a fifth of all its own.
    importlib.invalidate_caches()
    sys.path_importer_cache.clear()
    if len(os.listdir("/proc/self/task")) > 1 or users_modules():
        return  # `ready` ends without a word
    again.freeze()
    gc.enable()
    if gathers and memory.available() > memory.ENOUGH:
        huge_pages.gather()
    try:
        ready.send_bytes(b"ready")
    except OSError:
        return  # the notebook went while we loaded
    ready.close()
    forkserver.main(listener.detach(), alive.fileno(), [])


def load(modules: list[str], gone: Callable[[], bool]) -> None:
    """Imports these. One that fails is left to the rank, which has somebody to tell.

    gone: whether nobody waits for them any more
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in modules:
            if gone():
                return
            with suppress(Exception):
                importlib.import_module(name)


# --- in the notebook ---------------------------------------------------------------------------------------------


class _Process(RankProcess):
    waits = False  # the server may still be importing torch


class Template:
    """Our side of a template.

    complete: it loads the whole course; else what it is told to
    """

    def __init__(self, complete: bool) -> None:
        self.sources = sources()  # before it reads them
        self.server_pid = server.ensure_running()
        self.is_ready = self.has_failed = self.is_told = False
        # A server that is a copy of us has what we had loaded by then, which is what our ranks want.
        self.is_complete = complete or server.is_copy()
        address = sockets.free_address()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen()
            theirs, self.alive = Pipe(duplex=False)
            self.ready, theirs_too = Pipe(duplex=True)
            self.server = server_process.Client(address, self.alive.fileno())
            arguments = (listener, theirs, theirs_too, complete)
            self.process = _Process(target=main, args=arguments, name="template")
            try:
                self.process.start()
            except BaseException:
                self.alive.close()
                self.ready.close()
                raise
            finally:
                theirs.close()
                theirs_too.close()
        if self.is_complete:
            self.tell()

    def tell(self, named: Collection[str] = ()) -> None:
        """Says what to load: late, since a notebook imports what it uses after it has begun the template.

        named: modules of the course that ranks will want, besides those that are loaded here
        """
        if self.is_told:
            return
        self.is_told = True
        modules = [] if server.is_copy() else modules_of(self.sources)
        if not self.is_complete:
            modules = [name for name in modules if name in sys.modules or name in named]
        with suppress(OSError):
            self.ready.send(modules)

    def look(self) -> None:
        """Hears whether it has loaded by now, or has ended."""
        if not self.is_ready and not self.has_failed and self.ready.poll(0):
            try:
                self.ready.recv_bytes()
                self.is_ready = True
            except (EOFError, OSError):  # OSError where it has not even heard what to load
                self.has_failed = True
        if self.is_ready and self.process.exitcode is not None:
            self.is_ready, self.has_failed = False, True

    def close(self) -> None:
        """Lets it end, as soon as its ranks have."""
        self.alive.close()
        self.ready.close()
        self.process._popen.finalizer()  # type: ignore[attr-defined]

    def forget(self) -> None:
        """In a process forked off this one."""
        self.alive.close()
        self.ready.close()
        self.process.forget()

    def pid(self) -> int | None:
        """Its process id, once the fork server has split it off."""
        with suppress(OSError, EOFError):
            known = self.process.pid is not None
            if known or connection.wait([self.process.sentinel], 0):
                return self.process.arrived()
        return None
