"""A nursery: a process that has imported what nearly all notebooks do, and forks a kernel for each request.

It has one thread. A kernel gets its own directory, environment, arguments and files, its own session, and a fork server
that is a copy of it. Of the course nothing is imported but what starts that server. Who uses it: forked_kernels.py.

Kernels begin as usual where the nursery does not suit: with variables that a library or Python reads once and that are
others here, where one of the modules has started a thread, or where the nursery has died.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
MODULE = "ipykernel_launcher"
# Read by libraries when they are loaded, or by Python when it starts.
READ_ONCE = (
    *("ATEN_", "DNNL_", "GOMP_", "KINETO_", "KMP_", "LD_", "MALLOC_", "MKL_", "MPL", "OMP_", "ONEDNN_", "OPENBLAS_"),
    *("PYTHON", "TORCH"),
)  # fmt: skip
INLINE = "module://matplotlib_inline.backend_inline"  # what a kernel sets where nothing is set
# With the fork server's own (server.PRELOAD). ipywidgets is not among them: it looks for its kernel when imported.
MODULES = [
    "ipykernel.kernelapp",
    "ipykernel.ipkernel",
    "ipykernel.zmqshell",
    "IPython.core.completer",
    "IPython.core.magics",
    "matplotlib.pyplot",
    "matplotlib.backends.backend_agg",
    "seaborn",
]
PATIENCE = 300.0  # seconds in which the nursery has imported them, on any machine


# --- in pytest's process -------------------------------------------------------------------------------------------


def is_possible() -> bool:
    """Whether this system can wait for a process that is not its child (Linux from 5.3, Python built with it)."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


class Nursery:
    """Our side of the process that forks. It begins with the first kernel and ends when this process does."""

    def __init__(self) -> None:
        self.environment = {"MPLBACKEND": INLINE, **os.environ}
        self.process: subprocess.Popen[bytes] | None = None
        self.works = True

    def kernel(self, arguments: list[str], options: Mapping[str, Any]) -> Forked | None:
        """A kernel with these arguments; None where it has to begin as usual."""
        environment = dict(options.get("env") or os.environ)
        if read_once({"MPLBACKEND": INLINE, **environment}) != read_once(self.environment):
            return None
        request = {"arguments": arguments, "environment": environment}
        request["folder"] = str(options.get("cwd") or os.getcwd())
        try:
            self._begin()
            return Forked(self._split_off(request, options)) if self.works else None
        except (OSError, ValueError):  # it has died: an empty answer is no number
            self.works = False
            return None

    def _begin(self) -> None:
        if self.process is not None or not self.works:
            return
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(PATIENCE)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tools.nursery", str(theirs.fileno())],
                cwd=ROOT,
                # The ranks are copies of it, and have one thread each; a kernel's PyTorch has its own.
                env={**self.environment, "OPENBLAS_NUM_THREADS": "1"},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.works = self.socket.recv(16) == b"ready"

    def _split_off(self, request: Mapping[str, Any], options: Mapping[str, Any]) -> int:
        with open(os.devnull) as nothing:
            files = [nothing, options.get("stdout") or 1, options.get("stderr") or 2]
            numbers = [one if isinstance(one, int) else one.fileno() for one in files]
            socket.send_fds(self.socket, [json.dumps(request).encode()], numbers)
        return int(self.socket.recv(16))


def read_once(environment: Mapping[str, str]) -> dict[str, str]:
    """Those of the variables that have had their effect when a kernel is split off."""
    return {name: value for name, value in environment.items() if name.startswith(READ_ONCE)}


class Forked:
    """What jupyter_client wants of a kernel's process: of subprocess.Popen, whose child this one is not."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.descriptor = -1
        try:
            self.descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            self.returncode = 0  # which it was, nobody knows

    def poll(self) -> int | None:
        """None while it runs."""
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        """Until it has ended."""
        if self._wait(timeout) is None:
            raise subprocess.TimeoutExpired("a kernel", timeout or 0.0)
        return 0

    def _wait(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self.descriptor], [], [], seconds)[0]:
            os.close(self.descriptor)
            self.returncode = 0
        return self.returncode

    def send_signal(self, number: int) -> None:
        """To it alone."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.descriptor, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


# --- in the nursery ------------------------------------------------------------------------------------------------


def serve(requests: socket.socket) -> None:
    """Its whole life: import, then a fork for each request, until nobody is at the other end."""
    from dtcourse.launch import server

    gc.disable()
    for name in MODULES + server.PRELOAD:
        importlib.import_module(name)
    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no kernel stays as a zombie
    suits = len(os.listdir("/proc/self/task")) == 1 and INLINE.partition("//")[2] not in sys.modules
    with suppress(ConnectionError):  # pytest's process ended
        requests.send(b"ready" if suits else b"no")
        while suits:
            request, files, _, _ = socket.recv_fds(requests, 1 << 20, 3)
            if not request:
                return
            if os.fork() == 0:
                os.setsid()
                requests.send(str(os.getpid()).encode())
                requests.close()
                be_kernel(files, **json.loads(request))
            for number in files:
                os.close(number)


def be_kernel(
    files: list[int], arguments: list[str], environment: dict[str, str], folder: str
) -> NoReturn:
    """In the fork: what a new process would find, then its life as a kernel."""
    import multiprocessing.process

    import numpy
    from ipykernel.kernelapp import IPKernelApp

    from dtcourse.launch import begin_in_notebook, server, server_process

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment, JPY_PARENT_PID=str(os.getppid()))
    os.chdir(folder)
    multiprocessing.process.ORIGINAL_DIR = folder
    sys.argv = [importlib.util.find_spec(MODULE).origin, *arguments[1:]]  # type: ignore[union-attr, list-item]
    # A template that finds a module of a user's, as this file is to it, serves nobody.
    sys.modules["__main__"] = sys.modules["__mp_main__"] = types.ModuleType("__main__")
    numpy.random.seed()  # noqa: NPY002  # Python's own generator is seeded at each fork
    # The fork server of its ranks, a copy of it: nothing of a notebook is here yet.
    server._know(*server_process.start(server_process.as_copy(())))
    gc.unfreeze()  # as_copy puts all that is loaded out of the collector's sight, for ranks
    # It ends when its parent does, which by what was imported would be the nursery's own.
    app = IPKernelApp.instance(parent_handle=os.getppid())
    app.initialize(sys.argv[1:])
    begin_in_notebook()  # imported before there was a notebook
    app.start()
    sys.exit()


if __name__ == "__main__":
    del sys.path[
        0
    ]  # the repository's top: a kernel looks in its notebook's folder, as IPython sees to
    serve(socket.socket(fileno=int(sys.argv[1])))
