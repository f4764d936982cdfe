"""The template: a process split off from the fork server that has the course loaded, and splits off ranks in its turn.

Every rank would import the course's packages anew, which takes longer than to form its group. The fork server cannot
have them, since what it has once imported it keeps, and an edit of the course must be seen. So they are loaded in a
process that can be thrown away: when one of the course's files has changed, the template goes, ranks come from the
fork server itself again, importing what they use, and the next template loads meanwhile. Nobody ever waits for one.

What it stands on:
- It has one thread. A fork copies the thread that calls it and the locks of all: with a second thread the copy may
  wait for ever for one that does not exist there. It looks, and serves nobody where it is not so.
- It holds nothing of the user's. It imports with the system's own folders on sys.path only, and looks afterwards.
- It never touches a GPU: a CUDA context does not survive a fork.
- It ends when this process does, however it ends: nobody holds the other end of its `alive` pipe any more.

Linux alone has it. Elsewhere we could not count its threads (macOS starts some on its own), so ranks come from the
fork server, which is what multiprocessing does on macOS as well.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import socket
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import PathFinder
from multiprocessing import Pipe, connection, forkserver
from multiprocessing.connection import Connection

import dtcourse
from dtcourse.launch import again, huge_pages, memory, server, server_process, sockets
from dtcourse.launch.course_files import COURSE, is_system, sources, users_modules
from dtcourse.launch.rank_process import RankProcess

POSSIBLE = os.path.isdir("/proc/self/task")

# --- in the template ---------------------------------------------------------------------------------------------


def main(listener: socket.socket, alive: Connection, ready: Connection, loads: bool) -> None:
    """The template's whole life: load the course, say so, split off ranks until nobody holds `alive`."""
    os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]  # we keep no server alive
    multiprocessing.set_start_method(None, force=True)  # the notebook's comes with each call
    sys.path = [folder for folder in sys.path if is_system(folder)]
    if loads:
        gc.disable()  # as server_process.py does
        load_course(alive.poll)
    # A rank forgets what was found in folders: to go through 300 of them would copy 600 pages, a fifth of all its own.
    importlib.invalidate_caches()
    sys.path_importer_cache.clear()
    if len(os.listdir("/proc/self/task")) > 1 or users_modules():
        return  # `ready` ends without a word
    again.freeze()
    gc.enable()
    if loads and memory.available() > memory.ENOUGH:
        huge_pages.gather()
    try:
        ready.send_bytes(b"ready")
    except OSError:
        return  # the notebook went while we loaded
    ready.close()
    forkserver.main(listener.detach(), alive.fileno(), [])


def load_course(gone: Callable[[], bool]) -> None:
    """Imports all modules that a rank may want. One that fails is left to the rank, which has somebody to tell.

    gone: whether nobody waits for them any more
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for file in sorted(sources()):
            path, ending = os.path.splitext(os.path.relpath(file, os.path.dirname(COURSE)))
            if gone():
                return
            if ending == ".py" and not path.endswith("__main__"):
                with suppress(Exception):
                    importlib.import_module(path.removesuffix("/__init__").replace("/", "."))


# --- in the notebook ---------------------------------------------------------------------------------------------


class _Process(RankProcess):
    waits = False  # the server may still be importing torch


class _Template:
    """Our side of a template."""

    def __init__(self) -> None:
        self.sources = sources()  # before it reads them
        self.server_pid = server.ensure_running()
        self.is_ready = self.has_failed = False
        address = sockets.free_address()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen()
            theirs, self.alive = Pipe(duplex=False)
            self.ready, says = Pipe(duplex=False)
            self.server = server_process.Client(address, self.alive.fileno())
            # A server that is a copy of us has what we had loaded by then, which is what our ranks want.
            arguments = (listener, theirs, says, not server.is_copy())
            self.process = _Process(target=main, args=arguments, name="template")
            try:
                self.process.start()
            except BaseException:
                self.alive.close()
                self.ready.close()
                raise
            finally:
                theirs.close()
                says.close()

    def look(self) -> None:
        """Hears whether it has loaded the course by now, or has ended."""
        global _killed
        if not self.is_ready and not self.has_failed and self.ready.poll(0):
            try:
                self.ready.recv_bytes()
                self.is_ready, _killed = True, 0
            except EOFError:
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


_template: _Template | None = None
_killed = 0
_serves = False  # what `refresh` last said
_follows_edits = True
_lock = threading.RLock()


def start_early() -> None:
    """Has a template made, without waiting for it, where there is none."""
    global _template
    with _lock, suppress(OSError):
        if POSSIBLE and _template is None:
            _template = _Template()


def leave_edits_to_others() -> None:
    """From now on an edit of the course makes no new template: whoever sends us calls looks, and lets us go."""
    global _follows_edits
    _follows_edits = False


def refresh() -> bool:
    """Whether ranks can come from a template that is what the files are. One that is not goes, and the next is begun.

    To be asked before each launch; what depends on the last template is to be thrown away where the answer is no.
    """
    global _serves
    with _lock:
        _serves = False
        if _template is None:
            return False
        _template.look()
        lost = _template.server_pid != server.ensure_running()
        edited = _follows_edits and _template.sources != sources()
        if lost or edited or _may_be_followed():
            discard()
            start_early()
            return False
        _serves = _template.is_ready and _is_what_a_rank_would_import()
        return _serves


def _may_be_followed() -> bool:
    """Whether it was killed, thrice in a row at most; one that would not serve is followed by none like it."""
    global _killed
    if _template is None or not _template.has_failed or _template.process.exitcode in (0, None):
        return False
    _killed += 1
    return _killed <= 3


def _is_what_a_rank_would_import() -> bool:
    """False where sys.path has come to lead to another dtcourse than the one that runs here."""
    found = PathFinder.find_spec("dtcourse")
    return found is None or found.origin == dtcourse.__file__


def discard() -> None:
    """Lets go of the template."""
    global _template
    with _lock:
        if _template is not None:
            _template.close()
            _template = None


def connect(descriptors: list[int]) -> tuple[int, int]:
    """Asks the template for a child. ConnectionError where there is none to ask."""
    global _serves
    with _lock:
        if _template is None or not _serves:
            raise ConnectionRefusedError("there is no template")
        try:
            return _template.server.connect_to_new_process(descriptors)  # type: ignore[attr-defined]
        # with FileNotFoundError, its socket is gone from the folder of temporary files
        except OSError as error:
            _serves, _template.is_ready, _template.has_failed = False, False, True
            raise ConnectionRefusedError("the template does not answer") from error


def pid() -> int | None:
    """The template's process id, once the fork server has split it off."""
    with _lock, suppress(OSError, EOFError):
        if _template is not None:
            known = _template.process.pid is not None
            if known or connection.wait([_template.process.sentinel], 0):
                return _template.process.arrived()
    return None


def _forget() -> None:
    """In a process forked off this one: the template is not its own."""
    global _template, _lock
    if _template is not None:
        _template.forget()
    _template, _lock = None, threading.RLock()


os.register_at_fork(after_in_child=_forget)
