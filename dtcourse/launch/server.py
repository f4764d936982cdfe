"""The fork server: a small process that has imported torch once, and splits off a fresh rank in milliseconds.

`multiprocessing` has one fork server a program, whose preload list must be set before anyone starts it, and its
children import `__main__` again. Ranks need neither: this module keeps a server of its own, and cloudpickle carries
what `__main__` defines. The notebook itself is never forked: it runs threads (autograd's, OpenMP's), and a fork of a
process with threads deadlocks sooner or later.

The server keeps the environment it was started with, so everything a rank needs from it (directory, sys.path,
environment) is sent with each launch. dtcourse is not preloaded, or an edit of it would stay invisible.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import threading
import time
from contextlib import suppress
from multiprocessing import (
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


def _new_server() -> Any:  # its private attributes are no part of its type
    server = forkserver.ForkServer()
    server.set_forkserver_preload(PRELOAD)
    return server


_server = _new_server()
_asking = threading.Lock()


class _Popen(popen_forkserver.Popen):
    def _launch(self, process_obj: Any) -> None:
        """As in multiprocessing, but with our own server, and without importing `__main__` in the child."""
        preparation = _preparation(process_obj._name)
        stream = io.BytesIO()
        context.set_spawning_popen(self)
        try:
            reduction.dump(preparation, stream)
            reduction.dump(process_obj, stream)
        finally:
            context.set_spawning_popen(None)

        for attempts_left in (2, 1, 0):
            try:
                self._split_off(stream)
                return
            except (ConnectionError, EOFError):  # the server is just dying: the next one is asked
                if not attempts_left:
                    raise
                time.sleep(0.1)

    def _split_off(self, stream: io.BytesIO) -> None:
        self.sentinel, writer = _connect(self._fds)  # type: ignore[attr-defined]
        # The child sees the end of this pipe when we die, however we die.
        alive = os.dup(writer)
        self.finalizer = util.Finalize(self, util.close_fds, (alive, self.sentinel))  # type: ignore[attr-defined]
        try:
            with open(writer, "wb", closefd=True) as file:
                file.write(stream.getbuffer())
            self.pid = forkserver.read_signed(self.sentinel)
        except BaseException:
            self.finalizer()
            raise


class RankProcess(process.BaseProcess):
    """A process split off from the server."""

    # What the rank starts itself (a data loader's workers) starts as anywhere else on this system: as under torchrun.
    _start_method = None

    @staticmethod
    def _Popen(process_obj: Any) -> _Popen:
        return _Popen(process_obj)


def _preparation(name: str) -> dict[str, Any]:
    """What a child needs to know of this process: its directory, sys.path, arguments."""
    decided = multiprocessing.get_start_method(allow_none=True)
    preparation = spawn.get_preparation_data(name)
    for unwanted in ("init_main_from_name", "init_main_from_path"):
        preparation.pop(unwanted, None)
    if decided is None:
        # multiprocessing settles on a start method when it is asked for one. Neither the notebook nor the rank has
        # chosen, so both still may.
        del preparation["start_method"]
        multiprocessing.set_start_method(None, force=True)
    return preparation


def _connect(descriptors: list[int]) -> tuple[int, int]:
    """Asks the server for a child, starting the server where there is none."""
    with _asking:
        _ensure_running()
        return _server.connect_to_new_process(descriptors)


def _ensure_running() -> None:
    # One thread while the server imports: OpenBLAS would start its own, and a process with threads should not fork.
    # The ranks get their own setting with the environment that is sent to them.
    quiet = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
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


def _forget() -> None:
    """In a process forked off this one: the server is not its child, so it needs its own."""
    global _server, _asking
    if _server._forkserver_alive_fd is not None:
        os.close(_server._forkserver_alive_fd)
    _server, _asking = _new_server(), threading.Lock()


os.register_at_fork(after_in_child=_forget)


def start_early() -> None:
    """Starts the server without waiting for it, so that it imports torch while the notebook still imports the rest."""
    # What is wrong will be said at the first launch, to one who asked for it.
    with suppress(OSError), _asking:
        _ensure_running()


def pid() -> int | None:
    """The server's process id; None before the first launch (in a notebook, before `from dtcourse import launch`)."""
    return _server._forkserver_pid
