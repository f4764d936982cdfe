"""launch: starts the ranks, watches them, brings back what they returned, and leaves nothing behind.

One loop waits for everything that can happen: an answer, a printed line, a process that went away, the time limit,
Ctrl-C. Whatever ends it, every rank's process group is killed before launch returns or raises.
"""

from __future__ import annotations

import linecache
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from dtcourse.events import Timeline
from dtcourse.launch import failures, meeting, options, parcels, rank, server
from dtcourse.launch.messages import Bars
from dtcourse.launch.output import Output

GRACE = 0.25  # seconds in which other ranks may still fail by themselves after the first failure
HEAVY = 100 << 20  # bytes of function and arguments worth a warning


class Run(Sequence[Any]):
    """What came back: `run[0]` is what rank 0 returned.

    .seconds        time of the slowest rank inside the function
    .total_seconds  time from the call of launch to its return
    .output         lines that each rank printed
    .layout         what was chosen: ranks, devices, backend
    .timeline       what each rank did (record=True)
    .traffic        what each rank sent (record=True)
    """

    def __init__(
        self,
        answers: list[dict[str, Any]],
        output: list[list[str]],
        layout: options.Layout,
        total_seconds: float,
        recorded: bool,
    ) -> None:
        self._results = [a["value"] for a in answers]
        self.output = output
        self.layout = layout
        self.seconds_by_rank = [a["seconds"] for a in answers]
        self.seconds = max(self.seconds_by_rank)
        self.total_seconds = total_seconds
        self._timeline: Timeline | None = None
        self._traffic: Any = None
        if recorded:
            from dtcourse.collectives.traffic import Traffic

            self._timeline = Timeline(e for a in answers for e in a["events"])
            self._traffic = Traffic.from_ranks([a["traffic"] for a in answers])

    def __getitem__(self, index: Any) -> Any:
        return self._results[index]

    def __len__(self) -> int:
        return len(self._results)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._results)

    def __repr__(self) -> str:
        return f"Run({self.layout})"

    @property
    def timeline(self) -> Timeline:
        """What each rank did. ValueError where nothing was recorded."""
        return self._recorded(self._timeline)

    @property
    def traffic(self) -> Any:
        """What each rank sent: a `collectives.traffic.Traffic`. ValueError where nothing was recorded."""
        return self._recorded(self._traffic)

    @staticmethod
    def _recorded(what: Any) -> Any:
        if what is None:
            raise ValueError("nothing was recorded: launch(..., record=True)")
        return what


def launch(
    function: Callable[..., Any],
    world_size: int = 2,
    /,
    *args: Any,
    backend: str | None = None,
    device: str | None = None,
    timeout: float | None = 120.0,
    record: bool = False,
    stream: bool = False,
    init: bool = True,
    network: Any = None,
    nodes: int = 1,
    threads: int = 1,
    env: dict[str, str] | None = None,
    on_message: Callable[[int, Any], None] | None = None,
    verbose: bool = False,
    **kwargs: Any,
) -> Run:
    """Runs function(*args, **kwargs) on `world_size` ranks of this machine and returns what each returned.

    Each rank is a fresh process. The process group is formed before the function is called and destroyed after it
    returns; the function asks torch.distributed for its rank. It may be defined in a notebook cell.

    backend:    "gloo", "nccl", or one of dtcourse's own ("ring", "tree", ...); None takes NCCL where every rank has
                its own GPU, else gloo
    device:     "cpu", "cuda" or None (whatever the machine has); a rank finds its own with dtcourse.device.current()
    timeout:    seconds, from the start of the ranks, after which they are stopped and a RankTimeout says where each
                one was; None: no limit
    record:     keep each rank's events and traffic in run.timeline and run.traffic
    stream:     show printed lines as they happen, not rank by rank at the end
    init:       False leaves forming the group to the function: `init_process_group()` then needs no arguments
    network:    a dtcourse.collectives.EmulatedNetwork that makes the links slow
    nodes:      lay the ranks out as so many nodes (LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK)
    threads:    intra-op threads of each rank
    env:        environment variables for the ranks, over the notebook's own
    on_message: called as on_message(rank, message) for each dtcourse.launch.send_message of a rank
    verbose:    say in one line what was chosen

    Raises RankFailure if a rank raised, exited or was killed; RankTimeout at the time limit; ValueError for what
    cannot be asked; TypeError for a function or an argument that cannot be pickled.
    """
    try:
        began = time.monotonic()
        _require_torch()
        options.check_arguments(function, launch, args, kwargs)
        limit = options.time_limit(timeout)
        layout = options.choose(world_size, backend, device, nodes, threads)
        options.check_open_files(world_size)
        if verbose:
            print(layout)
        with (
            closing(parcels.Sealed(_pack_call(function, args, kwargs))) as parcel,
            closing(meeting.MeetingPlace()) as place,
        ):
            added = {name: str(value) for name, value in (env or {}).items()}
            environments = _environments(layout, place.port, {**os.environ, **added})
            settings = [
                rank.Settings(
                    rank=index,
                    environment=environment,
                    backend=layout.backend,
                    threads=threads,
                    init=init,
                    record=record,
                    network=network,
                    timeout=limit,
                    sources=_sources(),
                    meeting_place=place.path,
                )
                for index, environment in enumerate(environments)
            ]
            with (
                _Interrupts() as interrupts,
                _Ranks(settings, parcel, stream, on_message, interrupts) as ranks,
            ):
                answers = ranks.answers(limit)
            return Run(answers, ranks.output.lines, layout, time.monotonic() - began, record)
    except BaseException as error:
        failures.hide_our_frames(error)
        raise


class _Interrupts:
    """Ctrl-C during a launch: the first press raises KeyboardInterrupt; the impatient ones after it, and all during
    the clean-up, wait until no rank is left.
    """

    def __init__(self) -> None:
        self.waiting = self.cleaning_up = False
        self._raised = False
        self._before: Any = None

    def __enter__(self) -> _Interrupts:
        if threading.current_thread() is threading.main_thread():  # the only one that gets signals
            self._before = signal.getsignal(signal.SIGINT)
            if callable(self._before):
                signal.signal(signal.SIGINT, self._pressed)
        return self

    def _pressed(self, number: int, frame: Any) -> None:
        if self._raised:
            return
        if self.cleaning_up:
            self.waiting = True
            return
        try:
            self._before(number, frame)
        except BaseException:
            self._raised = True
            raise

    def __exit__(self, *_: object) -> None:
        if callable(self._before):
            signal.signal(signal.SIGINT, self._before)
            if self.waiting and not self._raised:
                self._before(signal.SIGINT, None)


class _Ranks:
    """The processes of one launch, from start to end. Leaving the `with` block kills what is left of them."""

    def __init__(
        self,
        settings: list[rank.Settings],
        parcel: parcels.Sealed,
        stream: bool,
        on_message: Callable[[int, Any], None] | None,
        interrupts: _Interrupts,
    ) -> None:
        self.settings, self.parcel, self.on_message = settings, parcel, on_message
        self.interrupts = interrupts
        self.world_size = len(settings)
        self.processes: list[server.RankProcess] = []
        self.pids: list[int] = []
        self.channels: list[Connection] = []
        self.stacks: list[Connection] = []
        self.output = Output([], stream)
        self.stream = stream
        self.results: dict[int, dict[str, Any]] = {}
        self.failures: dict[int, failures.Failure] = {}
        self.bars = Bars()

    def __enter__(self) -> _Ranks:
        outputs = []
        try:
            for settings in self.settings:
                channel, theirs = Pipe(duplex=True)
                output, writes = Pipe(duplex=False)
                stacks, answers = Pipe(duplex=False)
                process = server.RankProcess(
                    target=rank.main, args=(theirs, writes, answers), name=f"rank {settings.rank}"
                )
                self.channels.append(channel)
                self.stacks.append(stacks)
                outputs.append(output)
                try:
                    process.start()
                finally:
                    for end in (theirs, writes, answers):
                        end.close()
                self.processes.append(process)
                self.pids.append(process.pid or 0)
            self.output = Output(outputs, self.stream)
            # All processes exist before the first function is sent: their start-ups overlap.
            for channel, settings in zip(self.channels, self.settings, strict=True):
                with suppress(
                    BrokenPipeError, ConnectionResetError
                ):  # it died; the loop will say how
                    parcels.send(channel, settings)
                    self.parcel.send(channel)
        except BaseException:  # leaving `with` is not for a block that was never entered
            self.output = Output(outputs, self.stream)
            self.__exit__()
            raise
        return self

    def answers(self, limit: float | None) -> list[dict[str, Any]]:
        """Waits until all ranks have answered; raises where one did not within `limit` seconds."""
        # From here, not from the call of launch: the first one starts the server, which is no fault of the function.
        deadline = None if limit is None else time.monotonic() + limit
        grace: float | None = None
        try:
            while len(self.results) + len(self.failures) < self.world_size:
                now = time.monotonic()
                if grace is not None and now >= grace:
                    break
                if deadline is not None and now >= deadline and grace is None:
                    raise failures.rank_timeout(
                        limit or 0.0, set(self.results), self._ask_where(), self.world_size
                    )
                ends = [t for t in (grace, deadline) if t is not None]
                # An hour at most: the system's own wait cannot count for ever.
                self._step(min(max(0.0, min(ends) - now), 3600.0) if ends else None)
                if self.failures and grace is None:
                    grace = time.monotonic() + GRACE
        except KeyboardInterrupt as interrupt:
            where = {r: failures.where(s) for r, s in self._ask_where().items()}
            for index, place in where.items():
                interrupt.add_note(f"rank {index} {failures.readable(place)}")
            raise interrupt.with_traceback(
                None
            ) from None  # it says where the ranks were, not where we were
        if self.failures:
            failure = failures.rank_failure(list(self.failures.values()), self.world_size)
            raise failure from failure.failures[0].exception
        self._dismiss()
        return [self.results[index] for index in range(self.world_size)]

    def _step(self, seconds: float | None) -> None:
        """Handles what has happened by now, or the first thing that happens within `seconds`."""
        pending = [r for r in range(self.world_size) if r not in self.results | self.failures]
        channels = {self.channels[r]: r for r in pending}
        sentinels = {self.processes[r].sentinel: r for r in pending}
        ready = wait([*channels, *self.output.open_pipes, *sentinels], seconds)
        gone = []
        for item in ready:
            if item in channels:
                self._hear(channels[item])
            elif item in sentinels:
                gone.append(sentinels[item])
            else:
                self.output.read(item)  # type: ignore[arg-type]
        for index in gone:
            self._bury(index)

    def _hear(self, index: int) -> None:
        """Takes one message of a rank."""
        try:
            unpack = parcels.receive(self.channels[index])
        except (EOFError, OSError):
            return self._bury(index)
        return self._file(index, unpack)

    def _file(self, index: int, unpack: Callable[[], Any]) -> None:
        try:
            kind, content = unpack()
        except Exception as error:  # it arrived, and cannot be rebuilt here
            summary = f"returned something that cannot be rebuilt in the notebook: {error!r}"
            kind, content = "failure", {"summary": summary, "when": time.monotonic()}
        if kind == "result":
            self.results[index] = content
        elif kind == "failure":
            self.failures[index] = failures.Failure(index, **content)
        elif kind == "progress":
            self.bars.update(*content)
        elif kind == "message" and self.on_message is not None:
            self.on_message(index, content)

    def _bury(self, index: int) -> None:
        """A rank's process went away. What it said before that counts first."""
        with suppress(EOFError, OSError):
            while index not in self.results | self.failures and self.channels[index].poll():
                self._file(index, parcels.receive(self.channels[index]))
        if index in self.results | self.failures:
            return
        process = self.processes[index]
        process.join(5)
        summary = failures.exit_summary(process.exitcode)
        details = self._read_stack(index)
        self.failures[index] = failures.Failure(index, summary, details, time.monotonic())

    def _ask_where(self) -> dict[int, str]:
        """The stacks, at this moment, of all ranks that have not answered."""
        asked = [r for r in range(len(self.pids)) if r not in self.results | self.failures]
        for index in asked:
            with suppress(ProcessLookupError):
                os.kill(self.pids[index], signal.SIGUSR1)
        if asked:
            time.sleep(0.2)  # the time it takes a signal handler to write a page
        return {index: self._read_stack(index) for index in asked}

    def _read_stack(self, index: int) -> str:
        pipe, text = self.stacks[index], b""
        while pipe.poll():
            data = os.read(pipe.fileno(), 1 << 16)
            if not data:
                break
            text += data
        return text.decode(errors="replace")

    def _dismiss(self) -> None:
        """Lets every rank take down its group and leave; reads what it still prints."""
        for channel in self.channels:
            with suppress(OSError):
                channel.send_bytes(b"leave")
        limit = time.monotonic() + 5.0
        open_sentinels = {p.sentinel for p in self.processes}
        while open_sentinels and (left := limit - time.monotonic()) > 0:
            for item in wait([*open_sentinels, *self.output.open_pipes], left):
                if item in open_sentinels:
                    open_sentinels.discard(item)  # type: ignore[arg-type]
                else:
                    self.output.read(item)  # type: ignore[arg-type]

    def __exit__(self, *_: object) -> None:
        self.interrupts.cleaning_up = True
        # The group, not only the process: data loaders' workers and whatever else a rank started go with it.
        for pid in self.pids:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)  # in case it had no time to form a group
        for process in self.processes:
            process.join(10)
            process.close()
        deadline = time.monotonic() + 1.0
        while self.output.open_pipes and time.monotonic() < deadline:
            for pipe in wait(self.output.open_pipes, 0.1):
                self.output.read(pipe)  # type: ignore[arg-type]
        self.output.show()
        self.output.close()
        for connection in (*self.channels, *self.stacks):
            connection.close()
        self.bars.close()


def _require_torch() -> None:
    try:
        import torch.distributed
    except ImportError:
        raise ImportError(options.wrong_python("PyTorch")) from None
    if not torch.distributed.is_available():
        raise RuntimeError("this build of PyTorch has no torch.distributed: install another one")


def _environments(layout: options.Layout, port: int, base: dict[str, str]) -> list[dict[str, str]]:
    """The environment of each rank: torchrun's names, so that what runs here runs there."""
    from dtcourse import device

    environments = []
    for index in range(layout.world_size):
        node, local = divmod(index, layout.ranks_per_node)
        own = {
            "RANK": index,
            "WORLD_SIZE": layout.world_size,
            "LOCAL_RANK": local,
            "LOCAL_WORLD_SIZE": layout.ranks_per_node,
            "GROUP_RANK": node,
            "GROUP_WORLD_SIZE": layout.nodes,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "TORCHELASTIC_RESTART_COUNT": 0,
            # Somebody listens there already (meeting.py): every rank is a client, rank 0 too.
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            # All GPUs of the machine, whatever node the layout pretends to.
            "DTCOURSE_DEVICE": device.for_rank(index, layout.kind),
            "OMP_NUM_THREADS": layout.threads,
        }
        environment = {**base, **{name: str(value) for name, value in own.items()}}
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        for name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
            environment.setdefault(name, loopback)
        environments.append(environment)
    return environments


def _sources() -> dict[str, list[str]]:
    """Code that was typed, not read from a file, so that a rank's traceback can show its lines."""
    typed = {}
    for name, entry in list(linecache.cache.items()):
        if len(entry) == 4 and entry[1] is None and not name.startswith("<frozen"):
            typed[name] = entry[2]
    return typed


# --- the function and its arguments -----------------------------------------------------------------------------


def _pack_call(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    try:
        parcel = parcels.pack((function, args, kwargs))
    except Exception as error:
        raise TypeError(unsendable(function, args, kwargs, error)) from None
    size = parcels.size_of(parcel)
    if size > HEAVY:
        parts = [(parcels.size_of(parcels.pack(p)), n) for n, p in _parts(function, args, kwargs)]
        biggest, name = max(parts, default=(size, "the function"))
        warnings.warn(
            f"{size / 1e6:,.0f} MB travel to the ranks with this launch, {biggest / 1e6:,.0f} MB of it {name}. "
            "Build large data inside the function, or pass the part that a rank needs.",
            stacklevel=3,
        )
    return parcel


def unsendable(function: Any, args: Any, kwargs: Any, error: Exception) -> str:
    """Names the part of a call that cannot be pickled, and says what to do."""
    for name, part in _parts(function, args, kwargs):
        try:
            parcels.pack(part)
        except Exception as cause:
            path, inner = rank.find_unpicklable(part, name)
            return (
                f"{path} is a {type(inner).__name__}, which cannot be sent to a rank ({cause}): "
                "create it inside the function"
            )
    return f"the function cannot be sent to a rank: {error}"


def _parts(function: Any, args: Any, kwargs: Any) -> list[tuple[str, Any]]:
    """Everything that travels with a call, by name: arguments, and what the function takes from around it."""
    parts = [(f"argument {i}", value) for i, value in enumerate(args)]
    parts += [(f"argument {name!r}", value) for name, value in kwargs.items()]
    if isinstance(function, partial):
        return parts + _parts(function.func, function.args, function.keywords)
    owner = getattr(function, "__self__", None)
    if owner is not None:
        parts.append((f"the object that {function.__name__} is a method of", owner))
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None:
        return parts
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        with suppress(ValueError):  # a variable that was never set
            parts.append((f"the enclosing variable {name!r}", cell.cell_contents))
    if function.__module__ == "__main__":  # elsewhere, functions travel by name
        used = _names(code) & set(function.__globals__)
        parts += [(f"the global variable {n!r}", function.__globals__[n]) for n in sorted(used)]
    return parts


def _names(code: Any) -> set[str]:
    """Names that a function's code, and that of the functions inside it, may look up as globals."""
    inner = [c for c in code.co_consts if hasattr(c, "co_names")]
    return set(code.co_names).union(*map(_names, inner))
