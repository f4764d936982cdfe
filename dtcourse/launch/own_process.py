"""What makes a process that was split off a rank's own: its group, its files, its environment, its end."""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection as mp_connection
from multiprocessing.connection import Connection
from typing import Any

from dtcourse.launch import recording


def leave_terminal() -> None:
    """A process group of its own: Ctrl-C is the launcher's, and one signal ends all we start."""
    os.setsid()
    # The server's children have it blocked. One that has come meanwhile was not for us either: ignoring it drops it.
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    # On a cluster its agent has blocked the others, which are the rank's own: launch/cluster/ends.py.
    unblocked = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, unblocked)
    signal.signal(signal.SIGINT, handler)


def end_with(parent: Any) -> None:
    """Ends this rank, and all that it started, when the notebook's process goes away, however it goes."""

    def watch() -> None:
        mp_connection.wait([parent.sentinel])
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="dtcourse-parent-watch").start()


def redirect(output: Connection) -> None:
    """Points the file descriptors, not only sys.stdout, at the launcher, so that compiled code's output arrives too."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    output.close()
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = open(descriptor, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)


def flush() -> None:
    """Sends what was printed without the end of its line on its way."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the function may have put anything in their place
            stream.flush()


def set_environment(wanted: dict[str, str]) -> None:
    """Has it hold just this. What is so already stays as it is, or pages that ranks share would be copied for it."""
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    for name, value in wanted.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def no_input(*_: Any) -> str:
    """In the place of input()."""
    raise RuntimeError(
        "input() has nobody to ask inside a rank: pass the value to launch as an argument"
    )


def no_breakpoint(*_: Any, **__: Any) -> None:
    """In the place of breakpoint()."""
    raise RuntimeError(
        "breakpoint() has no keyboard inside a rank: call the function in the notebook itself with one rank, "
        "or print, or read the stacks of a launch with a short timeout"
    )


def adopt_main(function: Callable[..., Any]) -> None:
    """Lets pickle find, in this process too, what the notebook's `__main__` defines and the function uses."""
    function = getattr(function, "func", function)  # a functools.partial's own
    if getattr(function, "__module__", None) == "__main__" and hasattr(function, "__globals__"):
        main_module = vars(sys.modules["__main__"])
        for name, value in function.__globals__.items():
            main_module.setdefault(name, value)


def leave_stacks(descriptor: int) -> None:
    """A crash leaves Python's stack there, and so does a question: SIGUSR1."""
    faulthandler.enable(descriptor)
    faulthandler.register(signal.SIGUSR1, descriptor, all_threads=True)
    recording.stacks_to(descriptor)


def seed(rank: int) -> None:
    """Gives this rank its own random numbers, the same in every run, where a library would draw a seed of its own."""
    random.seed(rank)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(rank)
