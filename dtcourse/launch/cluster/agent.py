"""What runs on a node: one agent, which imports torch once and splits off that node's ranks.

One task of the scheduler a node, not one a rank: the import of torch is most of what a start costs, and ranks that are
split off share it. The agents of a job find each other through the job's folder, then through a store that node 0
serves on the cluster's network; the ranks meet in the same store.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil

from dtcourse.launch import environment, meeting, parcels, processes, rank, server
from dtcourse.launch.cluster import call as words
from dtcourse.launch.cluster.call import Call
from dtcourse.launch.cluster.folder import Reader, Writer, require_private
from dtcourse.launch.failures import Failure, RankFailure
from dtcourse.launch.interrupts import Interrupts

ECHO = 3.0  # seconds in which the other nodes may still say what they saw of a failure
MEET = 120.0  # seconds in which node 0 must have said where it listens


class Agent:
    """What Slurm's task of one node calls. Called again with the same folder where a job was requeued."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self) -> None:
        run(Path(self.folder))

    def checkpoint(self) -> Any:
        """What to call when the job was ended before its time and starts again: the same (submitit's protocol)."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def run(folder: Path) -> None:
    """One node's part of a job. Leaves with exit code 1 where a rank failed, so that Slurm ends the other nodes'."""
    # An end that is asked for (scancel, the time limit) ends the ranks as well: they are killed on our way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    require_private(folder)
    node = int(os.environ.get("SLURM_NODEID", 0))
    name = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    log = Writer(folder / words.log_name(node))
    log.write(
        (words.HERE, {"node": name, "attempt": int(os.environ.get("SLURM_RESTART_COUNT", 0))})
    )
    call, (stream, buffers) = (unpack() for unpack in Reader(folder / words.CALL).new())
    parcel = stream, [memoryview(buffer) for buffer in buffers]
    sentence = words.difference(call.versions, words.versions(), name)
    if sentence is None and not os.path.isdir(call.directory):
        sentence = f"node {name} has no folder {call.directory}, in which the notebook runs: work in a folder that all nodes share"
    if sentence is not None:
        log.write((words.REFUSED, sentence))
        sys.exit(1)
    if not call.requeued:
        # submitit has this signal requeue a job that Slurm is about to end. A launch ends with its notebook's patience.
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    os.chdir(call.directory)
    sys.path[:] = call.path
    server.start_within()  # imports torch here, and the ranks' server is a copy of this process
    with _Meeting(folder, node, name, call) as place:
        try:
            answers = _answers(call, parcel, node, place, log)
        except _NodeTimeout as error:
            log.write((words.TIMEOUT, error.args))
        except RankFailure as error:
            log.write((words.FAILED, _by_the_walls_clock(error.failures)))
        else:
            offset = time.time() - time.monotonic()
            log.write((words.RESULTS, {"answers": answers, "offset": offset}))
            place.leave()
            return
        with suppress(Exception):
            place.meet("over", ECHO)
    sys.exit(1)


def _answers(call: Call, parcel: Any, node: int, place: _Meeting, log: Writer) -> dict[int, Any]:
    """{rank: answer} of this node's ranks."""
    layout, asked = call.layout, call.asked
    first = node * layout.ranks_per_node
    mine = range(first, first + layout.ranks_per_node)
    base = {
        **os.environ,
        **dict.fromkeys(environment.INTERFACES, place.interface),
        **asked.environment,
    }
    settings = [
        replace(
            asked,
            rank=index,
            environment={
                **base,
                **environment.of_rank(layout, index, index - first, place.address, place.port),
            },
            meeting_place=f"tcp://{place.address}:{place.port}",
        )
        for index in mine
    ]
    with (
        closing(parcels.Sealed(parcel)) as sealed,
        Interrupts() as interrupts,
        NodeRanks(settings, sealed, asked.together, interrupts, place, log) as ranks,
    ):
        return dict(zip(mine, ranks.answers(asked.timeout), strict=True))


class NodeRanks(processes.Ranks):
    """The ranks of one node: what they say goes into the node's log, and they begin and leave with the other nodes'."""

    def __init__(
        self,
        settings: list[rank.Settings],
        parcel: parcels.Sealed,
        goes_on: bool,
        interrupts: Interrupts,
        place: _Meeting,
        log: Writer,
    ) -> None:
        def on_line(index: int, line: str) -> None:
            log.write((words.LINE, (settings[0].rank + index, line)))

        def on_message(number: int, message: Any) -> None:
            log.write((words.MESSAGE, (number, message)))

        super().__init__(settings, parcel, on_line, on_message, goes_on, interrupts)
        self.bars = _Bars(log)  # type: ignore[assignment]
        self.place, self.limit = place, settings[0].timeout

    def _timed_out(self, limit: float, stacks: dict[int, str]) -> Exception:
        finished = {self.first + index for index in self.results}
        return _NodeTimeout(limit, finished, {self.first + i: s for i, s in stacks.items()})

    def _say_go(self) -> None:
        self.place.meet("begun", rank.START)
        super()._say_go()

    def _dismiss(self) -> None:
        """A rank that left while another node's still work would look to them like one that had crashed."""
        self.place.meet("answered", None if self.limit is None else self.limit + rank.START)
        super()._dismiss()


class _NodeTimeout(Exception):
    """The time limit passed on this node: (seconds, {ranks that had finished}, {rank: stack}).

    The notebook writes one report for all nodes.
    """


class _Bars:
    """Sends the position of a bar to the notebook, which draws it."""

    def __init__(self, log: Writer) -> None:
        self._log = log

    def update(self, label: str, done: int, total: int | None) -> None:
        self._log.write((words.PROGRESS, (label, done, total)))

    def close(self) -> None:
        """Nothing is drawn here."""


def _by_the_walls_clock(failed: list[Failure]) -> list[Failure]:
    """With times that can be compared with another node's: monotonic clocks start with their machines."""
    offset = time.time() - time.monotonic()
    return [replace(failure, when=failure.when + offset) for failure in failed]


class _Meeting:
    """Where the nodes meet: a TCP store that node 0 serves on the network between the nodes, and on no other.

    address, port: of the store
    interface:     the network interface of this node that leads there
    """

    def __init__(self, folder: Path, node: int, name: str, call: Call) -> None:
        self.nodes, self._store, self._served = call.layout.nodes, None, None
        file = folder / f"{words.MEETING}-{os.environ.get('SLURM_RESTART_COUNT', 0)}"
        if node == 0:
            self.address = _own_address(call.interface, name, self.nodes)
            door = socket.create_server((self.address, 0), backlog=socket.SOMAXCONN)
            self.port: int = door.getsockname()[1]
            self._served = meeting.serve(door)
            Writer(file).write((self.address, self.port))
        else:
            self.address, self.port = _told(file)
        self.interface = call.interface or _interface(self.address, self.port)

    def __enter__(self) -> _Meeting:
        place = f"tcp://{self.address}:{self.port}"
        self._store = meeting.join(place, timedelta(seconds=MEET))
        return self

    def meet(self, word: str, limit: float | None) -> None:
        """Waits until the agents of all nodes have come to this word; at most `limit` seconds (None: a year)."""
        store: Any = self._store
        if store.add(f"dtcourse/{word}", 1) == self.nodes:
            store.set(f"dtcourse/{word}/all", "1")
        store.wait([f"dtcourse/{word}/all"], timedelta(seconds=limit or 365 * 24 * 3600))

    def leave(self) -> None:
        """Node 0 serves the store, so it waits for all others, which wait for nobody."""
        store: Any = self._store
        if store.add("dtcourse/left", 1) == self.nodes:
            store.set("dtcourse/left/all", "1")
        if self._served is not None:
            store.wait(["dtcourse/left/all"], timedelta(seconds=MEET))

    def __exit__(self, *_: object) -> None:
        self._store = self._served = None


def _told(file: Path) -> tuple[str, int]:
    """Where node 0 listens, as soon as it has said so."""
    deadline = time.monotonic() + MEET
    reader = Reader(file)
    while time.monotonic() < deadline:
        with suppress(FileNotFoundError):
            # Listing the folder makes a network file system look for new names.
            os.listdir(file.parent)
            for unpack in reader.new():
                return unpack()
        time.sleep(0.05)
    raise RuntimeError(f"node 0 has not said where it listens in {MEET:g} s")


def _own_address(interface: str | None, name: str, nodes: int) -> str:
    """The address of this node that the other nodes reach."""
    if interface is not None:
        found = psutil.net_if_addrs()
        for known in found.get(interface, []):
            if known.family == socket.AF_INET:
                return known.address
        raise RuntimeError(
            f"node {name} has no network interface {interface} with an IPv4 address; it has {', '.join(found)}"
        )
    if nodes == 1:
        return "127.0.0.1"
    # By the name that Slurm itself uses to reach it. The node's own idea of its name may be a loopback address.
    asked = ["scontrol", "--oneliner", "show", "node", name]
    shown = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    fields = dict(word.split("=", 1) for word in shown.split() if "=" in word)
    return socket.gethostbyname(fields.get("NodeAddr", name))


def _interface(address: str, port: int) -> str:
    """The interface that leads to that address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, port))  # sends nothing: only looks up the way
        own = probe.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(known.address == own for known in addresses):
            return name
    raise RuntimeError(f"no network interface of this node has the address {own}")
