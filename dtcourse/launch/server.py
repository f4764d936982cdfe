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
import os
from multiprocessing import context, forkserver, popen_forkserver, process, reduction, spawn, util
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
    "numpy",
    "cloudpickle",
]

_server = forkserver.ForkServer()
_server.set_forkserver_preload(PRELOAD)


class _Popen(popen_forkserver.Popen):
    def _launch(self, process_obj: Any) -> None:
        """As in multiprocessing, but with our own server, and without importing `__main__` in the child."""
        preparation = spawn.get_preparation_data(process_obj._name)
        preparation.pop("init_main_from_name", None)
        preparation.pop("init_main_from_path", None)
        stream = io.BytesIO()
        context.set_spawning_popen(self)
        try:
            reduction.dump(preparation, stream)
            reduction.dump(process_obj, stream)
        finally:
            context.set_spawning_popen(None)

        self.sentinel, writer = _connect(self._fds)
        # The child sees the end of this pipe when we die, however we die.
        alive = os.dup(writer)
        self.finalizer = util.Finalize(self, util.close_fds, (alive, self.sentinel))
        with open(writer, "wb", closefd=True) as file:
            file.write(stream.getbuffer())
        self.pid = forkserver.read_signed(self.sentinel)


class RankProcess(process.BaseProcess):
    """A process split off from the server."""

    _start_method = "forkserver"

    @staticmethod
    def _Popen(process_obj: Any) -> _Popen:
        return _Popen(process_obj)


def _connect(descriptors: list[int]) -> tuple[int, int]:
    """Asks the server for a child, starting the server where there is none."""
    # One thread while the server imports: OpenBLAS would start its own, and a process with threads should not fork.
    # The ranks get their own setting with the environment that is sent to them.
    quiet = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    before = {name: os.environ.get(name) for name in quiet}
    if _server._forkserver_pid is None:
        os.environ.update(quiet)
    try:
        return _server.connect_to_new_process(descriptors)
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def pid() -> int | None:
    """The server's process id; None before the first launch."""
    return _server._forkserver_pid
