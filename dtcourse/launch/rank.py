"""What runs inside a rank: take the function off the wire, form the group, call it, send back what it returned.

The rank keeps its connections open after it has answered, until the launcher says leave: a rank that left early would
look, to those still at work, like one that had crashed.
"""

from __future__ import annotations

import builtins
import faulthandler
import linecache
import os
import pickle
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection as mp_connection
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from typing import Any

from dtcourse.launch import meeting, messages, parcels


@dataclass(frozen=True)
class Settings:
    """What one rank is told apart from its function."""

    rank: int
    environment: dict[str, str]
    backend: str
    threads: int
    init: bool
    record: bool
    network: Any
    timeout: float | None
    sources: dict[str, list[str]]  # code that lives in no file (a notebook's cells), for tracebacks
    meeting_place: str  # the path of the store's file


def main(channel: Connection, output: Connection, stacks: Connection) -> None:
    """The rank's whole life. Says what became of it on `channel`: ("result" | "failure", content)."""
    os.setsid()  # a process group of its own: Ctrl-C is the launcher's, and one signal ends all we start
    signal.pthread_sigmask(
        signal.SIG_UNBLOCK, {signal.SIGINT}
    )  # the server's children have it blocked
    _end_with(parent_process())
    _redirect(output)
    faulthandler.enable(stacks.fileno())  # a crash leaves its stack
    faulthandler.register(
        signal.SIGUSR1, stacks.fileno(), all_threads=True
    )  # and so does a question

    lock = threading.Lock()

    def say(kind: str, content: Any) -> None:
        with lock:
            parcels.send(channel, (kind, content))

    try:
        settings: Settings = parcels.receive(channel)()
        messages._channel = say
        _prepare(settings)
        unpack = parcels.receive(channel)
        function, args, kwargs = unpack()
        _adopt_main(function)
        _form_group(settings)
        start = time.monotonic()
        value = function(*args, **kwargs)
        seconds = time.monotonic() - start
        answer = {"value": value, "seconds": seconds, **_records(settings)}
        try:
            packed = parcels.pack(("result", answer))
        except Exception as error:
            raise TypeError(_unsendable(value, error)) from error
    except BaseException as error:
        # BaseException: sys.exit() in a rank is a failure too, since no result will come.
        _flush()  # before it is said: the launcher may end us at once
        say("failure", _describe(error))
    else:
        _flush()
        with lock:
            sealed = parcels.Sealed(packed)
            sealed.send(channel)
            sealed.close()
    channel.recv_bytes()  # "leave"
    _leave_group()


def _end_with(parent: Any) -> None:
    """Ends this rank, and all that it started, when the notebook's process goes away, however it goes."""

    def watch() -> None:
        mp_connection.wait([parent.sentinel])
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="dtcourse-parent-watch").start()


def _redirect(output: Connection) -> None:
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


def _flush() -> None:
    """Sends what was printed without the end of its line on its way."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the function may have put anything in their place
            stream.flush()


def _prepare(settings: Settings) -> None:
    import torch

    from dtcourse import device

    os.environ.clear()
    os.environ.update(settings.environment)
    torch.set_num_threads(settings.threads)
    # Split off from one server, all ranks would draw the same numbers from run to run and from rank to rank.
    seed(settings.rank)
    chosen = device.current()
    if device.is_gpu(chosen):
        device.use(chosen)
    else:
        device.hide()
    for name, lines in settings.sources.items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    builtins.input = _no_input
    sys.breakpointhook = _no_breakpoint
    if settings.record:
        from dtcourse import events

        events.start_recording(settings.rank)


def seed(rank: int) -> None:
    """Gives this rank its own random numbers, the same in every run, where a library would draw a seed of its own."""
    random.seed(rank)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(rank)


def _no_input(*_: Any) -> str:
    raise RuntimeError(
        "input() has nobody to ask inside a rank: pass the value to launch as an argument"
    )


def _no_breakpoint(*_: Any, **__: Any) -> None:
    raise RuntimeError(
        "breakpoint() has no keyboard inside a rank: call the function in the notebook itself with one rank, "
        "or print, or read the stacks of a launch with a short timeout"
    )


def _adopt_main(function: Callable[..., Any]) -> None:
    """Lets pickle find, in this process too, what the notebook's `__main__` defines and the function uses."""
    function = getattr(function, "func", function)  # a functools.partial's own
    if getattr(function, "__module__", None) == "__main__" and hasattr(function, "__globals__"):
        main_module = vars(sys.modules["__main__"])
        for name, value in function.__globals__.items():
            main_module.setdefault(name, value)


def _form_group(settings: Settings) -> None:
    if not settings.init:
        return
    import torch.distributed as dist

    # Longer than the launcher's own limit, so that its report, with everyone's stacks, comes first.
    limit = timedelta(seconds=(settings.timeout or 24 * 3600) + 60)
    meeting_point: dict[str, Any] = {
        "store": meeting.join(settings.meeting_place, limit),
        "rank": settings.rank,
        "world_size": int(os.environ["WORLD_SIZE"]),
    }
    if (
        settings.backend in ("gloo", "nccl", "mpi")
        and not settings.record
        and settings.network is None
    ):
        dist.init_process_group(settings.backend, timeout=limit, **meeting_point)
        return
    from dtcourse.collectives import backend

    backend.form_group(
        settings.backend,
        timeout=limit,
        network=settings.network,
        record=settings.record,
        **meeting_point,
    )


def _leave_group() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def _records(settings: Settings) -> dict[str, Any]:
    """The events and the traffic of this rank, where they were asked for."""
    if not settings.record:
        return {}
    from dtcourse import events
    from dtcourse.collectives import traffic

    return {"events": events.stop_recording(), "traffic": traffic.collect()}


def _describe(error: BaseException) -> dict[str, Any]:
    """A failure as plain data. The exception itself comes along where it can be pickled."""
    when = time.monotonic()
    if isinstance(error, SystemExit):
        summary = f"called sys.exit({error.code!r}) before it returned"
    else:
        try:
            text = str(error)
        except Exception:
            text = ""
        summary = f"raised {type(error).__name__}" + (f": {text}" if text else "")
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next  # the reader wants their own code, not ours
    details = "".join(traceback.format_exception(type(error), error, frames))
    carried: BaseException | None = error.with_traceback(None)
    try:
        # Many exceptions can be pickled but not built again: those whose __init__ takes other arguments than a text.
        stream, buffers = parcels.pack(carried)
        pickle.loads(stream, buffers=buffers)
    except Exception:
        carried = None
    return {"summary": summary, "details": details, "when": when, "exception": carried}


def _unsendable(value: Any, error: Exception) -> str:
    """Names the part of a result that cannot be pickled."""
    path, part = find_unpicklable(value, "the result")
    return (
        f"{path} is a {type(part).__name__}, which cannot be sent to the notebook ({error}): "
        "return plain data (numbers, tensors, lists, dicts of them)"
    )


def find_unpicklable(value: Any, path: str) -> tuple[str, Any]:
    """The innermost part of a container that cannot be pickled, and the path that leads to it."""
    if isinstance(value, dict):
        parts = [(f"{path}[{key!r}]", part) for key, part in value.items()]
    elif isinstance(value, list | tuple):
        parts = [(f"{path}[{i}]", part) for i, part in enumerate(value)]
    else:
        # A module has no attributes worth naming here, and a class none of its own.
        attributes = {} if isinstance(value, type) else getattr(value, "__dict__", {})
        parts = [(f"{path}.{name}", part) for name, part in attributes.items()]
    for name, part in parts:
        try:
            parcels.pack(part)
        except Exception:
            return find_unpicklable(part, name)
    return path, value
