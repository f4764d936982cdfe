"""The nodes of one allocation, from the notebook's side: the job that holds them, and the calls that it is given.

Calls are ordered in the allocation's own private folder, and lie in folders below it: the nodes read nothing else.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dtcourse.launch import course_files, options, rank, serialization, waiting
from dtcourse.launch.cluster import call as words
from dtcourse.launch.cluster import presence, remote
from dtcourse.launch.cluster.call import Hold
from dtcourse.launch.cluster.folder import Writer, create
from dtcourse.launch.cluster.job import Job
from dtcourse.launch.cluster.record import JobFailed, Record
from dtcourse.launch.cluster.settings import Settings
from dtcourse.launch.interrupts import Stop
from dtcourse.launch.run import Run
from dtcourse.plural import plural

LOOK = 0.01  # seconds between two looks into the logs of a call, at first
GOES = 20.0  # seconds in which the nodes must have left a call, or the end of all: then the job is cancelled


class NotTaken(Exception):
    """The nodes were given back before they saw the call."""


class Allocation:
    """Nodes that are held for this notebook.

    nodes, ranks_per_node: the most that a launch may take of it
    """

    def __init__(
        self,
        settings: Settings,
        nodes: int,
        ranks_per_node: int,
        idle_minutes: float,
        minutes: int,
    ) -> None:
        self.settings = settings
        self.layout = options.Layout(
            nodes * ranks_per_node, nodes, "cpu", settings.gpus_per_node * nodes, "gloo", 1
        )
        self.seconds = minutes * 60.0
        self.sources, self.environment = course_files.sources(), dict(os.environ)
        self.busy = threading.Lock()
        self.is_open, self._number, self._ready = True, 0, False
        hold = Hold(
            self.layout,
            os.getcwd(),
            remote.own_path(),
            settings.interface,
            settings.warning,
            presence.PATIENCE,
            idle_minutes * 60,
        )
        self.folder = create(Path(settings.folder), "allocation")
        Writer(self.folder / words.CALL).write(hold)
        for name in (words.ORDERS, *map(words.log_name, range(nodes))):
            (self.folder / name).touch(mode=0o600)
        self._orders = Writer(self.folder / words.ORDERS)
        asked = replace(settings, minutes=minutes)
        (self.record,) = remote.submit(asked, "allocation", [self.folder], hold)
        self._presence = presence.Presence(self.folder, self.record.job).__enter__()
        self.job = _Holding(self.folder, self.record, asked)

    def takes(self, settings: Settings, layout: options.Layout) -> bool:
        """Whether such a launch has room in it."""
        return (
            settings == self.settings
            and layout.nodes <= self.layout.nodes
            and layout.ranks_per_node <= self.layout.ranks_per_node
        )

    def is_good(self) -> bool:
        """Whether a launch that begins now would find the nodes, what the course is now, and the time it may take."""
        if not self.is_open:
            return False
        if self._ready and (self.folder / words.OVER).exists():
            return False
        # As long as a job of its own would have, or the rest of the first half.
        needed = min(self.settings.minutes * 60.0, self.seconds / 2)
        has_time = not self._ready or time.monotonic() + needed <= self._until
        return has_time and self.sources == course_files.sources()

    def _wait_until_ready(self, stop: Stop | None) -> None:
        if self._ready:
            return
        self.job.stop = stop
        try:
            self.job.wait_until_ready()
        except BaseException:
            self.lose()
            raise
        # Slurm counts from when it gave the nodes, which was a little earlier.
        self._until = time.monotonic() + self.seconds - 30.0
        self._ready = True

    def run(
        self,
        layout: options.Layout,
        asked: rank.Settings,
        serialized: serialization.Serialized,
        on_line: Callable[[int, str], None] | None,
        on_message: Callable[[int, Any], None] | None,
        stop: Stop | None,
    ) -> Run[Any]:
        """One launch on its nodes. To be called with `busy` held. NotTaken where they have just been given back."""
        self._wait_until_ready(stop)
        changes = words.changes(self.environment, dict(os.environ))
        call = remote.call_for(
            layout, self.settings, asked, changes=changes, versions={}, patience=presence.PATIENCE
        )
        folder = self.folder / words.call_name(self._number)
        # Left by all nodes, since they have answered the call after it.
        shutil.rmtree(self.folder / words.call_name(self._number - 2), ignore_errors=True)
        folder.mkdir(mode=0o700)
        folder.chmod(0o700)
        remote.fill(folder, call, serialized)
        record = replace(self.record, layout=asdict(layout), record=asked.record)
        job = _Call(folder, record, self, on_line, on_message)
        job.stop = stop
        self._number += 1
        self._orders.write(words.CALL)
        return remote.run_of(job, on_line is not None, remote.slowdown_of(asked))

    def release(self) -> None:
        """Gives the nodes back, and waits until Slurm has them."""
        if not self.is_open:
            return
        self.is_open = False
        try:
            if self._ready:
                with suppress(OSError):
                    self._orders.write(words.OVER)
                deadline = time.monotonic() + GOES
                while (
                    self.job.state()[0] not in self.job.scheduler.OVER
                    and time.monotonic() < deadline
                ):
                    time.sleep(0.05)
            self.job.end()
        finally:
            self.lose()

    def lose(self) -> None:
        """Its job has ended."""
        self.is_open = False
        self._presence.close()

    def forget(self) -> None:
        """In a process forked off this one."""
        self.is_open = False
        self._presence.forget()


class _Holding(Job):
    """The job of an allocation, until its nodes take calls."""

    def __init__(self, folder: Path, record: Record, settings: Settings) -> None:
        super().__init__(folder, record, settings)
        self.ready: set[int] = set()  # nodes

    def wait_until_ready(self) -> None:
        """Until all nodes of an allocation take calls. Raises JobFailed where they will not; the job has ended then."""
        try:
            with waiting.saying(
                f"job {self.record.job} waits for {plural(self.layout.nodes, 'node')}"
            ):
                self._follow(lambda: len(self.ready) == self.layout.nodes)
        except BaseException:
            self.end()
            raise

    def _on_message(self, node: int, word: str, content: Any) -> None:
        super()._on_message(node, word, content)
        if word == words.READY:
            self.ready.add(node)


class _Call(Job):
    """A call on an allocation's nodes, followed like a job."""

    def __init__(
        self,
        folder: Path,
        record: Record,
        held: Allocation,
        on_line: Callable[[int, str], None] | None,
        on_message: Callable[[int, Any], None] | None,
    ) -> None:
        super().__init__(folder, record, held.settings, on_line, on_message)
        self.held, self.look = held, LOOK
        self.left: set[int] = set()  # nodes on which no rank of this call is any more

    def _on_message(self, node: int, word: str, content: Any) -> None:
        super()._on_message(node, word, content)
        if word == words.LEFT:
            self.left.add(node)

    def answers(self) -> list[Any]:
        """As Job.answers."""
        try:
            return super().answers()
        except JobFailed as error:
            if self.state()[0] in self.scheduler.OVER:
                self.held.lose()
                if not self.names and (self.held.folder / words.OVER).exists():
                    raise NotTaken from error
            raise

    def _was_interrupted(self) -> str:
        return f"its ranks on {', '.join(self.names.values()) or 'the cluster'} were ended"

    def end(self, wait: bool = True) -> None:
        """Ends the ranks of this call. The nodes stay, where they do as they are asked.

        wait: False where a node is gone, and all of them are given back
        """
        if not wait:
            super().end(wait)
            self.held.lose()
            return
        self.on_message = None  # nobody waits for more
        with suppress(OSError):
            (self.folder / words.END).touch(mode=0o600)
        deadline, looked = time.monotonic() + GOES, 0.0
        while len(self.left) < self.layout.nodes:
            now = time.monotonic()
            if now - looked > 1.0:
                looked = now
                if now > deadline or self.state()[0] in self.scheduler.OVER:
                    super().end()
                    self.held.lose()
                    return
            self.read()
            time.sleep(0.02)
