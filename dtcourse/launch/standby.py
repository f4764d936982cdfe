"""Spare ranks: processes split off from the template before anybody asks for them, each for one launch.

To split off a rank, and to start it, is work that can be done while the notebook is idle. A spare has done it, and
waits for the two things that make it a rank: where it is (directory, sys.path, arguments) and what it is to do
(settings with the environment, then the function). So nothing that the notebook changes meanwhile is old in it.

They are asked for when a launch has ended and no other one runs, so their making never disturbs a running rank, and
nobody waits for it: the template works on while the notebook goes its way. There are at most as many as the last
launches used, and at most MOST; none where memory is short. Each has a thread that ends it when this process goes.

Inside `keeping` the ranks of a launch are spares of the next one (again.py).
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dtcourse.launch import memory, parts, server, template
from dtcourse.launch.interrupts import Interrupts
from dtcourse.launch.member import Member
from dtcourse.launch.rank_process import RankProcess, preparation
from dtcourse.launch.serialization import Serialized

MOST = 8
PATIENCE = 5.0  # seconds in which spares must answer, or others take their place


class _Rank(RankProcess):
    @staticmethod
    def connect(descriptors: list[int]) -> tuple[int, int]:
        """From the template where there is one, else from the light server, else from the fork server."""
        for connect in (template.connect, server.connect_to_light):
            with suppress(ConnectionError):
                return connect(descriptors)
        return server.connect(descriptors)


class _Spare(RankProcess):
    attempts, waits = 1, False
    connect = staticmethod(template.connect)


_spares: list[Member] = []
_kept: list[Member] = []  # ranks of launches before, inside `keeping`
_keeping = 0
_recent: deque[int] = deque([0], maxlen=4)  # ranks of the last launches
_origin: object = None  # the template that the spares come from
_running = _launches = 0
_lock = threading.RLock()


@contextmanager
def keeping() -> Iterator[None]:
    """Launches in this block leave their ranks to one another, where nothing is left in them; see again.py.

    For a process that launches from one thread at a time. An edit of the course is seen after the block.
    """
    global _keeping
    _keeping += 1
    try:
        yield
    finally:
        _keeping -= 1
        if not _keeping:
            discard_kept()


@contextmanager
def aside() -> Iterator[None]:
    """Launches in this block have ranks of their own: those that are kept wait meanwhile."""
    global _keeping
    with _lock:
        before, waiting = _keeping, _kept[:]
        _keeping = 0
        _kept.clear()
    try:
        yield
    finally:
        with _lock:
            _keeping = before
            _kept[:0] = waiting


def keeps() -> bool:
    """Whether the ranks of a launch stay."""
    return bool(_keeping) and template.POSSIBLE


def discard_kept() -> None:
    """The next launch gets fresh ranks."""
    with _lock:
        while _kept:
            _kept.pop().discard_all()


def keep(member: Member) -> None:
    """Takes back a rank that can serve another launch."""
    with _lock:
        _kept.append(member)


@contextmanager
def launching(world_size: int, interrupts: Interrupts, light: bool = False) -> Iterator[None]:
    """Around a launch. Afterwards, where no other one runs, spares are asked for.

    light: it may begin a server that has a light one (server.py)
    """
    global _running, _launches
    counted = False
    try:
        with interrupts.put_off(), _lock:
            if light:
                server.start_early(light)
            elif not _running:
                server.end_light()
            _running, counted = _running + 1, True
            _launches += 1
            if not keeps() or len(_kept) < world_size:
                # a script that launches once would pay for a template, for nothing
                if _launches > 1:
                    template.start_early()
                _has_template()
        yield
    finally:
        with _lock:
            _running -= counted
            _recent.append(world_size)
            if not _running:
                server.end_light()
                _refill()


def note(call: Serialized) -> None:
    """What the next call names of the course, ranks after it find loaded. Looked for only where not all of it is."""
    if not template.is_complete():
        template.note(parts.of_the_course(call))


def expect(world_size: int) -> bool:
    """Has spares made for a first launch. False where there is no template yet."""
    with _lock:
        if serves := not _running and _has_template():
            _recent.append(world_size)
            _refill()
        return serves


def members(count: int) -> list[Member]:
    """So many ranks' processes: spares as far as there are any, the others split off now."""
    with _lock:
        kept = [_kept.pop(0) for _ in range(min(count, len(_kept)))]
        taken = kept + [_spares.pop(0) for _ in range(min(count - len(kept), len(_spares)))]
        for spare in _spares:  # the template is not at work while ranks run
            with suppress(OSError, EOFError):
                spare.process.arrived()
    alive = []
    try:
        for spare in taken:
            spare.adopt(preparation("rank"))
        limit = time.monotonic() + PATIENCE
        for spare in taken:
            if spare.has_taken(limit):
                alive.append(spare)
            else:
                spare.discard()
        while len(alive) < count:
            alive.append(Member(_Rank, "rank"))
    except BaseException:
        for member in {*taken, *alive}:
            member.discard()
        raise
    return alive


def _refill() -> None:
    global _origin
    _origin = template.current()
    with suppress(OSError):  # too many open files, or no template any more: then without
        while (
            len(_spares) + len(_kept) < min(max(_recent), MOST)
            and memory.available() > memory.ENOUGH
        ):
            _spares.append(Member(_Spare, "spare"))


def _has_template() -> bool:
    """Whether ranks can come from one. Spares of another one go."""
    serves = template.refresh()
    if not serves or template.current() is not _origin:
        _discard_all()
    return serves


def _discard_all() -> None:
    while _spares:
        _spares.pop().discard()


def pids() -> set[int]:
    """The processes that wait for the next launch: templates and spares."""
    with _lock:
        waiting = {one.pid for one in _spares + _kept if one.process.exitcode is None}
        return waiting | template.pids()


def _forget() -> None:
    """In a process forked off this one: the spares are not its own."""
    global _lock, _running, _keeping
    for spare in _spares + _kept:
        spare.forget()
    _spares.clear()
    _kept.clear()
    _lock, _running, _keeping = threading.RLock(), 0, 0


os.register_at_fork(after_in_child=_forget)
