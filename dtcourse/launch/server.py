"""The fork server: a small process that has imported torch once, and splits off a fresh rank in milliseconds.

`multiprocessing` has one fork server a program, whose preload list must be set before anyone starts it, and its
children import `__main__` again. Ranks need neither: this module keeps a server of its own, and cloudpickle carries
what `__main__` defines. The notebook itself is never forked: it runs threads (autograd's, OpenMP's), and a fork of a
process with threads deadlocks sooner or later.

The server keeps the environment it was started with, so everything a rank needs from it (directory, sys.path,
environment) is sent with each launch. dtcourse is not preloaded here, or an edit of it would stay invisible: that is
the template's work (template.py).

A script's first launch waits for its server, and may need little of what that imports (parts.py). Its ranks come from
the light server then, a copy of the server that has imported the rest. It goes when the launch has ended, and the
server imports the parts for the next one.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from typing import Any

from dtcourse.launch import server_process
from dtcourse.launch.parts import PARTS

# What nearly every rank imports. A module that fails to import here fails silently: the rank then imports it itself
# and pays for it; tests/launch holds that these arrive loaded.
PRELOAD = [
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.distributed.device_mesh",
    *PARTS,  # half a second for each rank
    "numpy",
    "cloudpickle",
    # and what launch imports of the standard library, a millisecond or two in each rank
    "faulthandler",
    "multiprocessing.popen_forkserver",
    "shlex",
    "sysconfig",
]
# What every rank imports of the course, and those that record, or run on a backend of its own.
OF_RANKS = [
    "dtcourse.launch.rank",
    "dtcourse.launch.launcher",
    "dtcourse.collectives.backend.register",
]
_further: list[str] = []  # what `preload` adds to PRELOAD


def _new_server() -> Any:  # its private attributes are no part of its type
    server = forkserver.ForkServer()
    server.set_forkserver_preload([*PRELOAD, *_further])
    return server


_server = _new_server()
_asking = threading.Lock()
_copy: int | None = None  # the process id of a server that began as a copy of this process
_light: tuple[str, int] | None = None  # the light server's address, and what keeps it alive


def connect(descriptors: list[int]) -> tuple[int, int]:
    """Asks the server for a child, starting the server where there is none."""
    with _asking:
        _ensure_running()
        return _server.connect_to_new_process(descriptors)


def connect_to_light(descriptors: list[int]) -> tuple[int, int]:
    """Asks the light server for a child. ConnectionError where there is none."""
    with _asking:
        if _light is None:
            raise ConnectionRefusedError("there is no light server")
        # Its children keep the server alive, as the server's own do, and not the light one.
        light = server_process.Client(_light[0], _server._forkserver_alive_fd)
        try:
            return light.connect_to_new_process(descriptors)
        except OSError as error:
            _end_light()
            raise ConnectionRefusedError("the light server does not answer") from error


def end_light() -> None:
    """Lets the light server go. It tells nobody any more how its ranks end: they are to have ended."""
    with _asking:
        _end_light()


def _end_light() -> None:
    global _light
    if _light is not None:
        os.close(_light[1])
        _light = None


def ensure_running(light: bool = False) -> int:
    """Starts the server where there is none, without waiting for it. Returns its process id.

    light: with a light server; `end_light` is to follow
    """
    with _asking:
        _ensure_running(light)
        return _server._forkserver_pid


def _ensure_running(light: bool = False) -> None:
    global _light
    # One thread while the server imports: OpenBLAS would start its own, and a process with threads should not fork.
    # The ranks get their own setting with the environment that is sent to them.
    quiet = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    # And not the notebook's folder before Python's own: what torch imports is not what lies beside the notebook.
    quiet["PYTHONSAFEPATH"] = "1"
    before = {name: os.environ.get(name) for name in quiet}
    decided = multiprocessing.get_start_method(allow_none=True)
    resource_tracker.ensure_running()  # which unblocks SIGINT, so before it is blocked
    # Ctrl-C goes to every process of the terminal or the kernel; the server, and a rank until it has a group of its
    # own, inherit that it waits. For us it is only put off.
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.environ.update(quiet)
    try:
        if not _is_running():
            if light:
                first = [name for name in [*PRELOAD, *_further] if name not in PARTS]
                known, _light = server_process.with_light(first, list(PARTS))
            else:
                known = server_process.start(server_process.anew([*PRELOAD, *_further]))
            _know(*known)
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if decided is None:
            multiprocessing.set_start_method(None, force=True)
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)


def _is_running() -> bool:
    """Whether there is a server. What is known of one that has ended is forgotten."""
    if _server._forkserver_pid is None:
        return False
    if not os.waitpid(_server._forkserver_pid, os.WNOHANG)[0]:
        return True
    os.close(_server._forkserver_alive_fd)
    _server._forkserver_address = _server._forkserver_alive_fd = _server._forkserver_pid = None
    _end_light()
    return False


def _know(address: str, pid: int, alive: int) -> None:
    _server._forkserver_address, _server._forkserver_pid = address, pid
    _server._forkserver_alive_fd = alive


def start_within(modules: list[str] = PRELOAD, keeps: Sequence[int] = ()) -> None:
    """Starts the server as a copy of this process, which imports what ranks need: once for both, not once for each.

    For a process that begins and is there to launch (an answer's, course/judging/serving.py): nothing of a user's is in
    it yet, and it has one thread. Where that is not so, or not to be seen (macOS), the server imports on its own.
    What of the course this process has loaded, ranks have too: an edit of that is not seen any more.

    keeps: open files that the copy has as well
    """
    global _copy
    if not os.path.isdir("/proc/self/task"):
        start_early()
        return
    load(modules)
    with _asking:
        if _server._forkserver_alive_fd is None and len(os.listdir("/proc/self/task")) == 1:
            _know(*server_process.start(server_process.as_copy(keeps)))
            _copy = _server._forkserver_pid
            return
    start_early()


def preload(*modules: str) -> None:
    """Has ranks find these loaded too: what all functions of a program need, as pytest is in its tests.

    Not the user's own, of which an edit is to be seen. RuntimeError once there is a server: it would not have them.
    """
    global _server
    with _asking:
        if _server._forkserver_alive_fd is not None:
            raise RuntimeError(
                "the fork server has started already: say what to preload before the first launch"
            )
        _further.extend(modules)
        _server = _new_server()


def load(modules: list[str] = PRELOAD) -> None:
    """Imports what ranks do."""
    with uncollected():
        for name in modules + OF_RANKS:
            with suppress(ImportError):
                importlib.import_module(name)


@contextmanager
def uncollected() -> Iterator[None]:
    """For imports: the garbage collector would find nothing in a quarter of the time."""
    collects, loaded = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if collects:
            if len(sys.modules) > loaded and not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()  # what is new is among the oldest objects now, which the collector looks at last
            gc.enable()


def is_copy() -> bool:
    """Whether the server began as a copy of this process."""
    return _copy is not None and _copy == _server._forkserver_pid


def _forget() -> None:
    """In a process forked off this one: the server is not its child, so it needs its own."""
    global _server, _asking, _copy
    if _server._forkserver_alive_fd is not None:
        os.close(_server._forkserver_alive_fd)
    _end_light()
    _server, _asking, _copy = _new_server(), threading.Lock(), None


os.register_at_fork(after_in_child=_forget)


def start_early(light: bool = False) -> None:
    """Starts the server without waiting for it, so that it imports torch while the notebook still imports the rest."""
    with suppress(OSError):  # will be said at the first launch, to one who asked for it
        ensure_running(light)


def pid() -> int | None:
    """The server's process id; None before the first launch (in a notebook, before `from dtcourse import launch`)."""
    return _server._forkserver_pid
