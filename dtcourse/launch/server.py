"""The fork server: a small process that has imported torch once, and splits off a fresh rank in milliseconds.

`multiprocessing` has one fork server a program, whose preload list must be set before anyone starts it, and its
children import `__main__` again. Ranks need neither: this module keeps a server of its own, and cloudpickle carries
what `__main__` defines. The notebook itself is never forked: it runs threads (autograd's, OpenMP's), and a fork of a
process with threads deadlocks sooner or later.

The server keeps the environment it was started with, so everything a rank needs from it (directory, sys.path,
environment) is sent with each launch. dtcourse is not preloaded here, or an edit of it would stay invisible: that is
the template's work (template.py).
"""

from __future__ import annotations

import importlib
import io
import multiprocessing
import os
import signal
import socket
import threading
import time
from contextlib import suppress
from multiprocessing import (
    connection,
    context,
    forkserver,
    popen_forkserver,
    process,
    reduction,
    resource_tracker,
    spawn,
    util,
)
from typing import Any

from dtcourse.launch import again

# What nearly every rank imports. A module that fails to import here fails silently: the rank then imports it itself
# and pays for it; tests/launch holds that these arrive loaded.
PRELOAD = [
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.distributed.device_mesh",
    "torch.distributed.tensor",
    "torch.distributed.fsdp",
    "torch._dynamo",  # the first optimizer of a process imports it: half a second for each rank
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


def _new_server() -> Any:  # its private attributes are no part of its type
    server = forkserver.ForkServer()
    server.set_forkserver_preload(PRELOAD)
    return server


_server = _new_server()
_asking = threading.Lock()
_copy: int | None = None  # the process id of a server that began as a copy of this process


class _Popen(popen_forkserver.Popen):
    pid: int | None  # type: ignore[assignment]  # None until the server has said it
    is_untold = False  # whether nobody is left to tell how the process ends

    def _launch(self, process_obj: Any) -> None:
        """As in multiprocessing, but with a server of ours, and without importing `__main__` in the child."""
        stream = io.BytesIO()
        context.set_spawning_popen(self)
        try:
            reduction.dump(preparation(process_obj._name), stream)
            reduction.dump(process_obj, stream)
        finally:
            context.set_spawning_popen(None)

        for attempts_left in range(process_obj.attempts - 1, -1, -1):
            try:
                self._split_off(process_obj, stream)
                return
            except (ConnectionError, EOFError):  # the server is just dying: the next one is asked
                if not attempts_left:
                    raise
                time.sleep(0.1)

    def _split_off(self, process_obj: Any, stream: io.BytesIO) -> None:
        self.pid = None
        self.sentinel, writer = process_obj.connect(self._fds)  # type: ignore[attr-defined]
        # The child sees the end of this pipe when we die, however we die.
        self.alive = os.dup(writer)
        self.finalizer = util.Finalize(self, util.close_fds, (self.alive, self.sentinel))  # type: ignore[attr-defined]
        try:
            with open(writer, "wb", closefd=True) as file:
                file.write(stream.getbuffer())
            if process_obj.waits:
                self.arrived()
        except BaseException:
            self.finalizer()
            raise

    def arrived(self) -> int:
        """The process id, as soon as the server has split the process off. OSError or EOFError where it cannot."""
        if self.pid is None:
            self.pid = forkserver.read_signed(self.sentinel)
        return self.pid or 0

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """The exit code; None while it runs. The pipe brings the process id first, then the exit code."""
        while self.returncode is None:
            if not connection.wait([self.sentinel], 0 if flag == os.WNOHANG else None):
                return None
            try:
                if self.pid is None:
                    self.arrived()
                else:
                    self.returncode = forkserver.read_signed(self.sentinel)
            except (
                OSError,
                EOFError,
            ):  # who would have told is gone; the process itself may be well
                self.returncode, self.is_untold = 255, True
        return self.returncode


class RankProcess(process.BaseProcess):
    """A process split off from the server.

    connect:  asks a server for a child
    attempts: how often, while servers are dying
    waits:    for the process id, so that start() raises where there is no process
    """

    # What the rank starts itself (a data loader's workers) starts as anywhere else on this system: as under torchrun.
    _start_method = None
    attempts = 3
    waits = True

    @staticmethod
    def _Popen(process_obj: Any) -> _Popen:
        return _Popen(process_obj)

    @staticmethod
    def connect(descriptors: list[int]) -> tuple[int, int]:
        """The server's own child."""
        return connect(descriptors)

    def start(self) -> None:
        """Splits it off. It is not among multiprocessing's active children, for which Python waits when it ends."""
        super().start()
        process._children.discard(self)  # type: ignore[attr-defined]

    def arrived(self) -> int:
        """The process id, once there is one."""
        return self._popen.arrived()  # type: ignore[attr-defined]

    def is_untold(self) -> bool:
        """Whether the server that it came from is gone: it may be well, and nobody will tell how it ends."""
        return self.exitcode is not None and self._popen.is_untold  # type: ignore[attr-defined]

    def forget(self) -> None:
        """In a process forked off this one: lets go of what is the other's."""
        for descriptor in (self._popen.alive, self._popen.sentinel):  # type: ignore[attr-defined]
            os.close(descriptor)


def preparation(name: str) -> dict[str, Any]:
    """What a child needs to know of this process, for spawn.prepare: its directory, sys.path, arguments."""
    decided = multiprocessing.get_start_method(allow_none=True)
    known = spawn.get_preparation_data(name)
    for unwanted in ("init_main_from_name", "init_main_from_path"):
        known.pop(unwanted, None)
    if decided is None:
        # multiprocessing settles on a start method when it is asked for one. Neither the notebook nor the rank has
        # chosen, so both still may.
        del known["start_method"]
        multiprocessing.set_start_method(None, force=True)
    return known


def connect(descriptors: list[int]) -> tuple[int, int]:
    """Asks the server for a child, starting the server where there is none."""
    with _asking:
        _ensure_running()
        return _server.connect_to_new_process(descriptors)


def ensure_running() -> int:
    """Starts the server where there is none, without waiting for it. Returns its process id."""
    with _asking:
        _ensure_running()
        return _server._forkserver_pid


def _ensure_running() -> None:
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
        _server.ensure_running()
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if decided is None:
            multiprocessing.set_start_method(None, force=True)
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)


def start_within(modules: list[str] = PRELOAD) -> None:
    """Starts the server as a copy of this process, which imports what ranks need: once for both, not once for each.

    For a process that begins and is there to launch (an answer's, course/judging/serving.py): nothing of a user's is in
    it yet, and it has one thread. Where that is not so, or not to be seen (macOS), the server imports on its own.
    What of the course this process has loaded, ranks have too: an edit of that is not seen any more.
    """
    if not os.path.isdir("/proc/self/task"):
        start_early()
        return
    load(modules)
    with _asking:
        if _server._forkserver_alive_fd is None and len(os.listdir("/proc/self/task")) == 1:
            _split_off_server()
            return
    start_early()


def load(modules: list[str] = PRELOAD) -> None:
    """Imports what ranks do."""
    for name in modules + OF_RANKS:
        with suppress(ImportError):
            importlib.import_module(name)


def is_copy() -> bool:
    """Whether the server has loaded what this process had when it split it off."""
    return _copy is not None and _copy == _server._forkserver_pid


def _split_off_server() -> None:
    global _copy
    address = connection.arbitrary_address("AF_UNIX")  # type: ignore[attr-defined]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        alive, ours = os.pipe()
        masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # see _ensure_running
        again.freeze()
        if (pid := os.fork()) == 0:
            try:
                _close_all_but({0, 1, 2, listener.fileno(), alive})
                forkserver.main(listener.fileno(), alive, [])
            finally:
                os._exit(0)
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        os.close(alive)
    _server._forkserver_address, _server._forkserver_pid = address, pid
    _copy = pid
    _server._forkserver_alive_fd = ours


def _close_all_but(kept: set[int]) -> None:
    """What else this process has open is none of the ranks' business."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor not in kept:
            with suppress(OSError):
                os.close(descriptor)


def _forget() -> None:
    """In a process forked off this one: the server is not its child, so it needs its own."""
    global _server, _asking, _copy
    if _server._forkserver_alive_fd is not None:
        os.close(_server._forkserver_alive_fd)
    _server, _asking, _copy = _new_server(), threading.Lock(), None


os.register_at_fork(after_in_child=_forget)


def start_early() -> None:
    """Starts the server without waiting for it, so that it imports torch while the notebook still imports the rest."""
    with suppress(OSError):  # will be said at the first launch, to one who asked for it
        ensure_running()


def pid() -> int | None:
    """The server's process id; None before the first launch (in a notebook, before `from dtcourse import launch`)."""
    return _server._forkserver_pid
