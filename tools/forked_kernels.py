"""A pytest plugin: notebooks' kernels are split off from a process that has imported what nearly all of them do.

More than half of what it takes to execute the course's notebooks is to import PyTorch and matplotlib, once in each
kernel and once more in its fork server. Here each of pytest's processes has a nursery: a process with one thread that
imports them once, and forks. A kernel gets its own directory, environment, arguments and files, its own session, and
a fork server that is a copy of it. Of the course nothing is imported but what starts that server, so a notebook that
forgets an import fails as it does in a kernel of its own.

    python -m pytest -p tools.forked_kernels --nbval lessons/

Kernels begin as usual where the nursery does not suit: not on Linux, or with variables that a library reads when it is
loaded (OMP_NUM_THREADS, ...) and that are others here, or where one of the modules has started a thread.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NoReturn

import pytest

MODULE = "ipykernel_launcher"
# Read by libraries when they are loaded, or by Python when it starts.
READ_ONCE = (
    "ATEN_",
    "DNNL_",
    "GOMP_",
    "KMP_",
    "LD_",
    "MALLOC_",
    "MKL_",
    "MPL",
    "OMP_",
    "ONEDNN_",
    "OPENBLAS_",
)
INLINE = "module://matplotlib_inline.backend_inline"  # what a kernel sets where nothing is set
MODULES = [
    "ipykernel.kernelapp",
    "ipykernel.ipkernel",
    "ipykernel.zmqshell",
    "IPython.core.completer",
    "IPython.core.magics",
    "ipywidgets",
    "matplotlib.pyplot",
    "matplotlib.backends.backend_agg",
    "seaborn",
    "torch.distributed.checkpoint",
    "torch.distributed.tensor.parallel",
    "torch.utils.data",
    "torch.utils.flop_counter",
    "torch.profiler",
]


def pytest_configure(config: pytest.Config) -> None:
    """From now on kernels of this process come from its nursery."""
    hands_out = config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    if hands_out or not hasattr(os, "pidfd_open"):
        return
    from jupyter_client.provisioning import local_provisioner

    nursery = Nursery()
    usual = local_provisioner.launch_kernel

    def launch_kernel(cmd: list[str], **options: Any) -> Any:
        own = cmd[0] == sys.executable and MODULE in cmd
        return (own and nursery.kernel(cmd[cmd.index(MODULE) :], options)) or usual(cmd, **options)

    local_provisioner.launch_kernel = launch_kernel


# --- in pytest's process -------------------------------------------------------------------------------------------


class Nursery:
    """Our side of the process that forks. It ends when this process does."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.environment = {"MPLBACKEND": INLINE, **os.environ}
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                env=self.environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.works: bool | None = None

    def kernel(self, arguments: list[str], options: Mapping[str, Any]) -> Forked | None:
        """A kernel with these arguments; None where it has to begin as usual."""
        environment = dict(options.get("env") or os.environ)
        if read_once({"MPLBACKEND": INLINE, **environment}) != read_once(self.environment):
            return None
        if self.works is None:
            self.works = self.socket.recv(16) == b"ready"
        if not self.works:
            return None
        request = {
            "arguments": arguments,
            "environment": environment,
            "folder": options.get("cwd") or os.getcwd(),
        }
        with open(os.devnull) as nothing:
            files = [nothing, options.get("stdout") or 1, options.get("stderr") or 2]
            numbers = [one if isinstance(one, int) else one.fileno() for one in files]
            socket.send_fds(self.socket, [json.dumps(request).encode()], numbers)
        return Forked(int(self.socket.recv(16)))


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
        """Asks it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it."""
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
    if (
        os.fork() == 0
    ):  # before a fork OpenBLAS ends its threads, till somebody computes; nobody does here
        os._exit(0)
    os.wait()
    suits = len(os.listdir("/proc/self/task")) == 1 and INLINE.partition("//")[2] not in sys.modules
    requests.send(b"ready" if suits else b"no")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no kernel stays as a zombie
    while suits:
        try:
            request, files, _, _ = socket.recv_fds(requests, 1 << 20, 3)
        except ConnectionResetError:  # it went without having asked for one
            break
        if not request:
            break
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
    import numpy
    from ipykernel import kernelapp

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment, JPY_PARENT_PID=str(os.getppid()))
    os.chdir(folder)
    paths = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = dict.fromkeys([*paths, *sys.path])
    sys.argv = arguments
    numpy.random.seed()  # noqa: NPY002  # Python's own generator is seeded at each fork
    gc.unfreeze()
    start_server()
    sys.exit(kernelapp.launch_new_instance())  # type: ignore[func-returns-value]


def start_server() -> None:
    """The fork server of this kernel's ranks, a copy of it: nothing of a notebook is here yet."""
    from dtcourse.launch import server, server_process

    server._know(*server_process.start(server_process.as_copy(())))


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
