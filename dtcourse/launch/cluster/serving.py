"""What runs on the nodes of an allocation: agents that take one call after the other.

Each keeps what a notebook keeps on one machine: a server that has torch and the course loaded, a template and spare
ranks. Calls come as they do for a job, in a private folder each; node 0 looks for the next one, and rings a bell at the
others: a key in the store through which the agents meet. The store is open to every user of the cluster who finds its
port, so the key says nothing but its number. What to do is read in the folder.

The nodes are given back when no call has come for the time that the notebook has said, when it says so, and when it is
gone (ends.py).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from dtcourse.launch import server, standby, template, template_process
from dtcourse.launch.cluster import call as words
from dtcourse.launch.cluster.agent import ECHO, Node, begin
from dtcourse.launch.cluster.call import Hold
from dtcourse.launch.cluster.folder import Reader, require_private
from dtcourse.launch.cluster.rendezvous import MEET, Ended, NodeRendezvous
from dtcourse.launch.cluster.station import Station
from dtcourse.launch.course_files import modules_of, sources

FIRST_LOOK, LAST_LOOK = 0.02, 0.2  # seconds between two looks for a call, after one and after long
A_YEAR = timedelta(days=365)


def serve(folder: Path, station: Station) -> None:
    """One node's part of an allocation, from its begin until the nodes are given back."""
    node = begin(folder, station)
    (unpack,) = Reader(folder / words.CALL).new()
    hold: Hold = unpack()
    server.load()
    # by Python's own path: nothing of the notebook's folder
    template_process.load(modules_of(sources()), gone=lambda: False)
    node.settle(hold)
    server.start_within()
    template.leave_edits_to_others()
    template.start_early()
    node.watch.start()
    with NodeRendezvous(folder, station, hold) as meeting:
        node.watch.together = partial(meeting.barrier_of_thread, "ended")
        node.log.write((words.READY, None))
        bell = meeting.connect()
        calls = _Looking(folder, hold, bell) if node.number == 0 else _Listening(folder, hold, bell)
        number = 0
        while calls.has(number):
            _take(node, folder / words.call_name(number))
            number += 1
        meeting.leave()


class _Calls:
    """The calls of an allocation, one after the other."""

    def __init__(self, folder: Path, hold: Hold, bell: Any) -> None:
        self.folder, self.hold, self.bell = folder, hold, bell
        self._has_spares = False

    def has(self, number: int) -> bool:
        """Waits for the call of that number. False: there is none any more."""
        raise NotImplementedError

    def _prepare(self) -> None:
        """Spare ranks for the first call, once there is a template."""
        if not self._has_spares:
            self._has_spares = standby.expect(self.hold.layout.ranks_per_node)


class _Looking(_Calls):
    """Node 0's: reads what the notebook orders."""

    def __init__(self, folder: Path, hold: Hold, bell: Any) -> None:
        super().__init__(folder, hold, bell)
        self._orders = Reader(folder / words.ORDERS)
        self._read: list[str] = []

    def has(self, number: int) -> bool:
        began = time.monotonic()
        while len(self._read) <= number:
            self._read += [unpack() for unpack in self._orders.new()]
            waited = time.monotonic() - began
            if len(self._read) <= number:
                if waited > self.hold.idle:
                    self._read.append(words.OVER)
                self._prepare()
                time.sleep(min(FIRST_LOOK + waited / 100, LAST_LOOK))
        goes_on = self._read[number] == words.CALL
        if not goes_on:
            (self.folder / words.OVER).touch(mode=0o600)
        self.bell.set(_key(number), "1")
        return goes_on


class _Listening(_Calls):
    """The other nodes': wait for the bell."""

    def has(self, number: int) -> bool:
        while not self._has_spares and not self.bell.check([_key(number)]):
            self._prepare()
            time.sleep(FIRST_LOOK)
        self.bell.wait([_key(number)], A_YEAR)
        began = time.monotonic()
        while time.monotonic() - began < MEET:
            names = os.listdir(self.folder)  # makes a network file system look for new names
            if words.call_name(number) in names:
                return True
            if words.OVER in names:
                return False
            if self.bell.check([_key(number + 1)]):
                return True  # it was another node's alone, and its folder has gone since
            time.sleep(FIRST_LOOK)
        raise RuntimeError(f"the folder of call {number} did not come in {MEET:g} s")


def _key(number: int) -> str:
    return f"dtcourse/bell/{number}"


def _take(node: Node, folder: Path) -> None:
    """This node's part of one call; nothing where the call needs fewer nodes."""
    try:
        require_private(folder)
        call, serialized = node.read_call(folder)
    except FileNotFoundError:
        return
    if node.number >= call.layout.nodes:
        return
    log = node.log_in(folder)
    log.write((words.BEATS, words.BEAT))
    try:
        if (sentence := node.lacks(call)) is not None:
            log.write((words.REFUSED, sentence))
            return
        node.go_to(call)
        with (
            log.beating(words.BEAT),
            NodeRendezvous(folder, node.station, call) as rendezvous,
        ):
            with _Watching(node, folder, rendezvous):
                if not node.take(call, serialized, rendezvous, log, standby.launching):
                    with suppress(Ended, TimeoutError):
                        rendezvous.barrier("over", ECHO)  # the others may still say what they saw
                    rendezvous.end()
            rendezvous.leave()
    finally:
        log.write((words.LEFT, None))


class _Watching:
    """While ranks of a call run: ends them when another node's have failed, or the notebook says so."""

    def __init__(self, node: Node, folder: Path, rendezvous: NodeRendezvous) -> None:
        self.node, self.folder, self.rendezvous = node, folder, rendezvous
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="dtcourse-call", daemon=True)

    def __enter__(self) -> None:
        self._store = self.rendezvous.connect()
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._store = None

    def _watch(self) -> None:
        # Node 0's process serves the store, so it goes before nobody.
        with suppress(Exception):
            while not self._over.wait(0.1):
                if self.node.number == 0 and words.END in os.listdir(self.folder):
                    self.rendezvous.end(self._store)
                if self.rendezvous.is_over(self._store):
                    break
            while not self._over.wait(0.05):
                for pid in self.node.watch.ranks():  # those of one that is just starting come later
                    with suppress(ProcessLookupError, PermissionError):
                        os.killpg(pid, signal.SIGKILL)
