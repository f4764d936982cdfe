"""The ring of the last N calls. One a process; nothing is done where there is none."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from dtcourse import events
from dtcourse.callers import callers
from dtcourse.collectives.flight.entry import Entry
from dtcourse.collectives.traffic import here

CAPACITY = 256  # calls that are kept


class Recorder:
    """Keeps the last calls of this process. Safe to add to from several threads."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.entries: deque[Entry] = deque(maxlen=capacity)
        self.groups: dict[str, list[int]] = {}  # by name: their ranks of the default group
        self.count = 0
        self.main_thread = threading.main_thread().ident
        # how many calls there had been when a record was written during a hang
        self.written_at = -1
        self.run = ""  # its name, the same on all ranks of a run and on none of another
        self._names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._seqs: Counter[tuple[Any, ...]] = Counter()
        self._lock = threading.Lock()
        # posted in a batch of NCCL's, which has one handle
        self._without_handle = threading.local()
        self._held: list[Entry] = []  # whose handle nobody else holds

    def begin(
        self,
        operation: str,
        group: Any,
        tensors: Sequence[torch.Tensor],
        detail: dict[str, Any] | None = None,
        asynchronous: bool = False,
        message: tuple[int | None, int] | None = None,
    ) -> Entry:
        """A call of this thread begins. message: (peer's group rank, tag) of a send or a receive."""
        name = self.name_of(group)
        entry = Entry(operation, name, list(tensors), detail, callers(), asynchronous)
        key: tuple[Any, ...] = (name,)
        if message is not None:
            peer, entry.tag = message
            ranks = self.groups[name]
            entry.peer = ranks[peer] if peer is not None and 0 <= peer < len(ranks) else peer
            key = (name, operation.removeprefix("i"), entry.peer, entry.tag)
        with self._lock:
            self.count += 1
            self._seqs[key] += 1
            entry.number, entry.seq = self.count, self._seqs[key]
            self.entries.append(entry)
        return entry

    def posted(self, entry: Entry, work: Any, error: BaseException | None, hold: bool) -> None:
        """The call has returned its handle. hold: nobody else keeps it, so that it has to be kept here."""
        if error is not None or (work is None and not _in_batch(entry)):
            return entry.finish(error)
        if work is None:
            self._waiting_for_handle().append(entry)
            return None
        if not hold:
            entry.handle = weakref.ref(work)
            return None
        entry.handle = work
        self._held = [held for held in self._held if not held.look()]
        self._held.append(entry)
        return None

    def batch_posted(self, work: Any) -> list[Entry]:
        """A batch has started: its members have this handle. Returns them."""
        members, self._without_handle.entries = self._waiting_for_handle(), []
        for entry in members:
            entry.handle = weakref.ref(work)
        return members

    def _waiting_for_handle(self) -> list[Entry]:
        if not hasattr(self._without_handle, "entries"):
            self._without_handle.entries = []
        return self._without_handle.entries

    def collectives(self) -> dict[str, int]:
        """How many this rank has called, by group, also those that the ring has lost."""
        return {key[0]: n for key, n in self._seqs.copy().items() if len(key) == 1}

    def messages(self) -> list[tuple[Any, ...]]:
        """How many this rank has posted: (group, "send" or "recv", peer, tag, number)."""
        return [(*key, n) for key, n in self._seqs.copy().items() if len(key) > 1]

    def name_of(self, group: Any) -> str:
        """A group's name, the same on all its ranks; its ranks are noted under it."""
        known = self._names.get(group)
        if known is None:
            whole, part = getattr(group, "origin", (group, None))
            ranks = ranks_of(whole)
            known = "the default group"
            if dist.group.WORLD is not None and whole is not dist.group.WORLD:
                described = getattr(whole, "group_desc", "")
                title = described if described not in ("", "undefined") else whole.group_name
                known = f"group {title} of ranks {', '.join(map(str, ranks))}"
            if part is not None:
                ranks = [ranks[r] for r in part]
                known += f", its part of ranks {', '.join(map(str, ranks))}"
            self._names[group] = known
            self.groups[known] = ranks
            if not self.run:
                self.run = _name_of_run()
        return known


def _name_of_run() -> str:
    """The ranks agree on it through the store that they met at: the first to ask gives it."""
    mine = f"{time.time_ns():x}-{os.getpid():x}"
    try:
        store = dist.group.WORLD.get_group_store()  # type: ignore[union-attr]
        return store.compare_set("dtcourse/flight/run", "", mine).decode()
    except (RuntimeError, AttributeError):  # it has gone, or there is no default group
        return os.environ.get("TORCHELASTIC_RUN_ID", "")


def ranks_of(group: Any) -> list[int]:
    """A group's ranks in the default group; its own numbers where torch does not know it by name."""
    try:
        return list(dist.get_process_group_ranks(group))
    except (KeyError, ValueError):
        return list(getattr(group, "global_ranks", None) or range(group.size()))


def _in_batch(entry: Entry) -> bool:
    """Whether a call without a handle is one of a batch, which gets one when the batch ends."""
    return entry.operation.removeprefix("i") in ("send", "recv")


# --- the one of this process ------------------------------------------------------------------------------------

_recorder: Recorder | None = None


def use(recorder: Recorder | None) -> None:
    """From here on, this is the one of this process."""
    global _recorder
    _recorder = recorder
    events.changed()


def current() -> Recorder | None:
    """The one that hears of what this thread calls; None where none does."""
    return None if here.quiet else _recorder


def of_process() -> Recorder | None:
    """The one of this process, whatever this thread does."""
    return _recorder


@contextmanager
def quiet() -> Iterator[None]:
    """What this thread calls inside is a part of a call that has been recorded."""
    before, here.quiet = here.quiet, True
    try:
        yield
    finally:
        here.quiet = before


def begun(operation: str, group: Any, tensors: Sequence[torch.Tensor], **more: Any) -> Entry | None:
    """A call of ours begins; None where nobody records."""
    if _recorder is None or here.quiet:
        return None
    return _recorder.begin(operation, group, tensors, **more)


def message(
    operation: str,
    group: Any,
    tensor: torch.Tensor,
    peer: int | None,
    tag: int,
    start: Callable[[], Any],
) -> Any:
    """What `start` returns: the handle of a message of ours, which is recorded."""
    recorder = current()
    if recorder is None:
        return start()
    operation, asynchronous = as_called(operation)
    entry = recorder.begin(
        operation, group, [tensor], asynchronous=asynchronous, message=(peer, tag)
    )
    try:
        with quiet():
            work = start()
    except BaseException as error:
        entry.finish(error)
        raise
    work.entry = entry
    return work


_CALLED = ("distributed_c10d.py", "collectives/p2p.py")


def as_called(operation: str) -> tuple[str, bool]:
    """The name of the function that posts a message, and whether its caller goes on: "isend", or "send" where it waits.

    operation: "isend" or "irecv", which both of them end in
    """
    frame, blocking = sys._getframe(1), operation.removeprefix("i")
    for _ in range(8):
        if frame.f_back is None:
            break
        frame = frame.f_back
        code = frame.f_code
        if code.co_name == blocking and code.co_filename.endswith(_CALLED):
            return blocking, False
    return operation, True


@contextmanager
def waited_for(entry: Entry | None) -> Iterator[None]:
    """A handle of ours is waited for inside. entry: of the call that it is of; None where nobody records."""
    if entry is None:
        yield
        return
    entry.wait_begins(callers())
    try:
        yield
    except BaseException as error:
        entry.wait_ends(error)
        raise
    entry.wait_ends()
