"""What runs inside a rank: take the function off the wire, form the group, call it, send back what it returned.

The rank keeps its connections open after it has answered, until the launcher says leave: a rank that left early would
look, to those still at work, like one that had crashed. When it leaves, its connections end with its process: gloo,
asked to destroy a group, closes them one after the other and waits for its own thread at each, up to 10 ms. NCCL is
asked, and so is whatever group there is where launches keep their ranks (again.py) and the rank waits for the next one.
"""

from __future__ import annotations

import builtins
import importlib
import linecache
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from multiprocessing import current_process, parent_process, set_start_method, spawn
from multiprocessing.connection import Connection
from typing import Any

from dtcourse import events
from dtcourse.launch import (
    again,
    apart,
    deaths,
    each,
    log_settings,
    own_process,
    recording,
    rendezvous,
    reporting,
    sendable,
    serialization,
)

START = 60.0  # seconds in which the ranks must have formed their group, before the function's own limit begins

# The launcher's words: begin the function; go, since all ranks have answered; or go as a process does that has failed,
# without a word to peers. AGAIN: take down the group, and stay for another launch if nothing of this one is left
# (again.py).
GO, LEAVE, END, AGAIN = b"go", b"leave", b"end", b"again"


@dataclass(frozen=True)
class Settings:
    """What one rank is told apart from its function."""

    rank: int
    environment: dict[str, str]
    backend: str
    threads: int
    init: bool
    record: bool
    emulated: Any  # an emulation.cluster.EmulatedCluster, or None
    timeout: float | None
    sources: dict[str, list[str]]  # code that lives in no file (a notebook's cells), for tracebacks
    rendezvous: str  # where the store is: see rendezvous.join
    together: bool = False  # begin the function when all ranks can: one that fails at once breaks no group half made
    again: bool = False  # another launch may follow in this process
    logs: log_settings.LogSettings | None = None  # the notebook's
    # what a rank alone is given (each.py)
    own: dict[int, tuple[Any, ...]] = field(default_factory=dict)

    def of(self, rank: int, environment: dict[str, str], rendezvous: str) -> Settings:
        """One rank's, where these are all ranks'."""
        own = {rank: self.own[rank]} if self.own else {}
        return replace(self, rank=rank, environment=environment, rendezvous=rendezvous, own=own)


def main(channel: Connection, output: Connection, stacks: Connection) -> None:
    """The rank's whole life. Says what became of it on `channel`: ("result" | "failure", content)."""
    apart.close_if_asked()
    own_process.leave_terminal()
    own_process.end_with(parent_process())
    own_process.redirect(output)
    own_process.leave_stacks(stacks.fileno())
    lock = threading.Lock()

    def say(kind: str, content: Any) -> None:
        with lock:
            serialization.send(channel, (kind, content))

    while _serve(channel, say, lock):
        say("again", None)


def _serve(channel: Connection, say: Callable[[str, Any], None], lock: Any) -> bool:
    """One launch. Whether this process can serve another one, and is asked to."""
    condition: again.Condition | None = None
    try:
        first = serialization.receive(channel)()
        if isinstance(first, dict):  # a spare, split off before it was known where it would be
            set_start_method(None, force=True)  # what it was when this was split off
            spawn.prepare(first)
            importlib.invalidate_caches()
            say("taken", None)
            first = serialization.receive(channel)()
        settings: Settings = first
        reporting.connect(partial(_tell, say))
        _prepare(settings)
        if settings.again:
            condition = again.Condition()
        deserialize = serialization.receive(channel)
        function, args, kwargs = deserialize()
        if settings.own:
            args = each.filled(args, settings.own[settings.rank])
        own_process.adopt_main(function)
        _form_group(settings)
        deaths.watch(settings.rendezvous, settings.together)
        recording.start()
        if settings.record:
            events.start_recording(settings.rank)
        say("begun", None)  # the function's time limit counts from when all ranks have said so
        if settings.together:
            channel.recv_bytes()  # GO, when they have
        start = time.monotonic()
        with _computing(settings):
            value = function(*args, **kwargs)
        seconds = time.monotonic() - start
        recording.leave("returned")
        answer = {"value": value, "seconds": seconds, **_records(settings)}
        try:
            packed = serialization.serialize(("result", answer))
        except Exception as error:
            raise TypeError(sendable.unsendable_result(value, error)) from error
    except BaseException as error:
        # BaseException: sys.exit() in a rank is a failure too, since no result will come.
        condition = None
        own_process.flush()  # before it is said: the launcher may end us at once
        described = reporting.describe(error, __file__)
        recording.leave(described["summary"].splitlines()[0])
        say("failure", described)
    else:
        own_process.flush()
        with lock:
            payload = serialization.Payload(packed)
            payload.send(channel)
            payload.close()
    word = channel.recv_bytes()
    if word == AGAIN:
        say("hears", None)  # the last word: see leaving.py
    if word in (LEAVE, AGAIN):
        _leave_group(stays=word == AGAIN)
    if word != AGAIN or condition is None:
        return False
    del deserialize, function, args, kwargs, value, answer, packed, payload
    fits = condition.is_restored()
    own_process.flush()
    return fits


def _tell(say: Callable[[str, Any], None], kind: str, content: Any) -> None:
    """What the function may say on its way: how it ended is ours to say."""
    if kind not in ("message", "progress"):
        raise ValueError(
            f"a rank's function sends messages and progress, and nothing of kind {kind!r}"
        )
    say(kind, content)


def _prepare(settings: Settings) -> None:
    import torch

    from dtcourse import device

    current_process().name = f"rank {settings.rank}"
    own_process.set_environment(settings.environment)
    torch.set_num_threads(settings.threads)
    # Split off from one server, all ranks would draw the same numbers from run to run and from rank to rank.
    own_process.seed(settings.rank)
    chosen = device.current()
    if device.is_gpu(chosen):
        device.use(chosen)
    else:
        device.hide()
    for name, lines in settings.sources.items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    if settings.logs is not None:
        log_settings.adopt(settings.logs)
    builtins.input = own_process.no_input
    sys.breakpointhook = own_process.no_breakpoint


def _form_group(settings: Settings) -> None:
    if not settings.init:
        from dtcourse import torch_private

        torch_private.host_own_stores(int(os.environ["MASTER_PORT"]))
        if settings.emulated is not None:
            settings.emulated.start(settings.rank)
        return
    import torch.distributed as dist

    # Longer than the launcher's own limit, so that its report, with everyone's stacks, comes first.
    limit = timedelta(seconds=START + (settings.timeout or 24 * 3600) + 60)
    group_arguments: dict[str, Any] = {
        "store": rendezvous.join(settings.rendezvous, limit),
        "rank": settings.rank,
        "world_size": int(os.environ["WORLD_SIZE"]),
    }
    watched = settings.record or settings.emulated is not None
    if settings.backend in ("gloo", "nccl", "mpi") and not watched:
        dist.init_process_group(settings.backend, timeout=limit, **group_arguments)
        return
    from dtcourse.collectives.backend import register as backend

    backend.form_group(
        settings.backend,
        timeout=limit,
        emulated=settings.emulated,
        record=settings.record,
        **group_arguments,
    )


def _computing(settings: Settings) -> Any:
    """A context in which the function's operations take an emulated device's time, where there is one."""
    return (
        nullcontext() if settings.emulated is None else settings.emulated.computing(settings.rank)
    )


def _leave_group(stays: bool) -> None:
    import torch.distributed as dist

    from dtcourse import device

    if dist.is_initialized() and (stays or device.in_use()):
        dist.destroy_process_group()


def _records(settings: Settings) -> dict[str, Any]:
    """The emulated time, the events and the traffic of this rank, where they were asked for."""
    records: dict[str, Any] = {}
    if settings.emulated is not None:
        from dtcourse import emulation

        records["account"] = emulation.account()
    if settings.record:
        from dtcourse.collectives import traffic

        records |= {"events": events.stop_recording(), "traffic": traffic.collect()}
    return records
